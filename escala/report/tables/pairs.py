"""Build the table of the pairs that an experiment needs according to its pilot."""

from __future__ import annotations

from collections.abc import Iterator

from escala.report.tables.base import Evidence


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each configuration and each reference that it is compared with."""
    plan = evidence.pilot
    for row in plan["comparisons"] if plan else ():
        yield {
            **row,
            "half_width": plan["half_width"],
            "pairs": plan["pairs"],
            "cut": None if row["needed"] is None else row["needed"] > plan["at_most"],
        }
