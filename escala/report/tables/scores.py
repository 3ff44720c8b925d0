"""The scores of workloads that bring scores of their own."""

from __future__ import annotations

from collections.abc import Iterator

from escala.report.tables.base import Evidence, data_of, names_of


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each score of every run whose scores count."""
    for run in evidence.evaluated:
        for name, value in (run["evaluation"] or {}).get("scores", {}).items():
            yield {**names_of(run), "score": name, "value": value, **data_of(run)}
