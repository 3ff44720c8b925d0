"""Build the table of accuracy on test rows with and without a near-duplicate in training."""

from __future__ import annotations

from collections.abc import Iterator

from escala.analysis import leakage
from escala.report.tables.base import Evidence


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each run whose scores count."""
    return leakage.rows(evidence.scored, evidence.dataset_files)
