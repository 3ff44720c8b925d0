"""Build the table of scores by class, their averages, and the accuracy of each run."""

from __future__ import annotations

from collections.abc import Iterator

from escala.record.comparable import Measurement
from escala.report.tables.base import Evidence, data_of, names_of


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield the report of every run whose scores count."""
    for run in evidence.scored:
        yield from _of_run(run)


def _of_run(run: Measurement) -> Iterator[dict]:
    evaluation = run["evaluation"]
    names = names_of(run) | data_of(run)
    for label, scores in evaluation["per_class"].items():
        yield {**names, "level": "class", "class": label, **scores}
    for level in ("macro", "weighted"):
        yield {**names, "level": level, **evaluation[level], "support": evaluation["rows"]}
    yield {
        **names,
        "level": "accuracy",
        "accuracy": evaluation["accuracy"],
        "support": evaluation["rows"],
    }
