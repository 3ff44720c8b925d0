"""Build the table of the scores that workloads give after each epoch."""

from __future__ import annotations

from collections.abc import Iterator

from escala.report.tables.base import Evidence, data_of, names_of


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each score of every epoch of the runs whose scores count."""
    for run in evidence.evaluated:
        for epoch in run["epochs"]:
            for name, value in epoch.get("scores", {}).items():
                yield {
                    **names_of(run),
                    "epoch": epoch["epoch"],
                    "validated_on": run["training"]["validated_on"],
                    "score": name,
                    "value": value,
                    **data_of(run),
                }
