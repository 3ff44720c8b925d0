"""Build the table of ladders: the ratios of all pairs, and the product of the rungs."""

from __future__ import annotations

from collections.abc import Iterator

from escala.analysis import ladder
from escala.analysis.measurements import measurements
from escala.report.tables import runs
from escala.report.tables.base import Evidence, frame


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each rung, and for the product and the ends of each ladder."""
    found = measurements(evidence.paired_files)
    table = frame("runs", map(runs.row, found)).assign(
        pair=[run["pair"] for run in found], measurement=found
    )
    return ladder.rows(table, evidence.pairs)
