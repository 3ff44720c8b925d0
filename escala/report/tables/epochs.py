"""Build the table of every epoch of every measurement."""

from __future__ import annotations

from collections.abc import Iterator

from escala.report.tables.base import Evidence, data_of, names_of


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each epoch."""
    for run in evidence.found:
        for epoch in run["epochs"]:
            yield {
                **names_of(run),
                **{key: run[key] for key in ("current", "status")},
                **epoch,
                "validated_on": run["training"]["validated_on"],
                **data_of(run),
            }
