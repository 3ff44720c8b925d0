"""Build the table of the confusion matrices of each run."""

from __future__ import annotations

from collections.abc import Iterator

from escala.record.comparable import Measurement
from escala.report.tables.base import Evidence, data_of, names_of


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each cell of the matrix of every run whose scores count."""
    for run in evidence.scored:
        yield from _of_run(run)


def _of_run(run: Measurement) -> Iterator[dict]:
    evaluation = run["evaluation"]
    for true, row in zip(evaluation["classes"], evaluation["confusion_matrix"], strict=True):
        for predicted, count in zip(evaluation["classes"], row, strict=True):
            yield {
                **names_of(run),
                "true_class": true,
                "predicted_class": predicted,
                "rows": count,
                **data_of(run),
            }
