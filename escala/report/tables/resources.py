"""Build the table of the resources that each process of a run used."""

from __future__ import annotations

from collections.abc import Iterator

from escala.record.comparable import CONFIGURATION
from escala.report.tables.base import Evidence, data_of, dtypes


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each process of each run whose resources were sampled."""
    for run in evidence.of_probe("resources"):
        name = {key: run[key] for key in (*CONFIGURATION, "session", "status", "reason")}
        name |= {"oversubscribed": run["ranks"]["oversubscribed"]}
        unread = dict.fromkeys(dtypes("resources"))
        for process in run["resources"] or [{}]:
            yield unread | name | process | data_of(run)
