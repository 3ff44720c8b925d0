"""Build the table of how the times of each session changed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from escala.analysis.statistics import Interval
from escala.analysis.verdicts import MIN_MEASUREMENTS, drift
from escala.record.comparable import CONFIGURATION
from escala.report.tables import runs
from escala.report.tables.base import Evidence, frame, is_timed


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each session, in their order."""
    timed = [
        run
        for run in (*evidence.found, *evidence.again)
        if is_timed(run) and run["training"]["kind"] != "fit"
    ]
    table = frame("runs", map(runs.row, timed))
    for session, group in table.groupby("session"):
        moments = group["started"].map(lambda text: datetime.fromisoformat(text).timestamp())
        by_name = group.assign(moment=moments).groupby(list(CONFIGURATION), sort=False)
        found = drift(
            {name: each["moment"].to_numpy() for name, each in by_name},
            {name: each["train_seconds_per_epoch"].to_numpy(float) for name, each in by_name},
        )
        change = found.change if found else Interval(None, None, None)
        yield {
            "session": session,
            "runs": len(group),
            "configurations": by_name.ngroups,
            "seconds": float(moments.max() - moments.min()),
            "kind": "measured" if found else "unavailable",
            "reason": None if found else _too_few(len(group)),
            **change.columns("change"),
            "p_value": found.p_value if found else None,
            "detected": found.detected if found else None,
        }


def _too_few(measured: int) -> str:
    if measured < MIN_MEASUREMENTS:
        return f"{measured} runs, and a drift is judged by at least {MIN_MEASUREMENTS}"
    return "all runs began at the same moment"
