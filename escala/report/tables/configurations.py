"""Build the table of the medians of each configuration over its measurements."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from escala.analysis.statistics import Interval, median_interval
from escala.experiment.references import Configuration, reference_number
from escala.record.comparable import CONFIGURATION
from escala.report.tables.base import PARTS, Evidence, over, poorest, reasons

_OF_PROGRAMS = ("first_epoch_seconds", "program_seconds")


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each configuration."""
    for names, group in evidence.runs.groupby(list(CONFIGURATION), sort=False):
        current, ok = group[group["current"]], group[group["status"] == "ok"]
        timed = ok[ok["comparable"] & (ok["resumptions"] == 0)]
        scored = ok[ok["current"]]
        failed = current[current["status"] != "ok"]
        yield {
            **dict(zip(CONFIGURATION, names, strict=True)),
            "reference": reference_number(Configuration(*names[2:]), evidence.references),
            "training_kind": group["training_kind"].iloc[0],
            "ranks": group["ranks"].iloc[0],
            "oversubscribed": bool(group["oversubscribed"].any()),
            "runs_ok": len(scored),
            "runs_failed": len(failed),
            "measurements": len(timed),
            "sessions": timed["session"].nunique(),
            "hosts": ";".join(sorted(set(";".join(timed["hosts"]).split(";")) - {""})),
            "kind": poorest(timed["kind"]),
            "reason": None if len(timed) else reasons(failed),
            **over(timed, "train_seconds_per_epoch").columns("train", "_seconds_per_epoch"),
            **over(timed[timed["kind"] == "measured"], "train_seconds").columns(
                "total_train", "_seconds"
            ),
            **over(timed, "step_median_seconds").columns("step", "_seconds"),
            **over(timed, "samples_per_second").columns("samples_per_second"),
            **over(scored, "accuracy").columns("accuracy"),
            **to_target(timed),
            "epoch_wall_seconds_per_epoch": over(timed, "epoch_wall_seconds_per_epoch").estimate,
            **{f"{p}_seconds": over(timed, f"{p}_seconds").estimate for p in PARTS},
            **{key: over(timed, key).estimate for key in _OF_PROGRAMS},
            "wall_seconds": over(timed, "wall_seconds").estimate,
            "provenance": group["provenance"].iloc[0],
            "leaky": group["leaky"].iloc[0],
        }


def to_target(timed: pd.DataFrame) -> dict:
    """Return the median time to the target accuracy of the runs of a configuration.

    Runs that did not reach it would have taken longer than they ran. If the median is then
    unknown, the value is a lower bound and the kind `censored`.
    """
    known = timed[timed["time_to_target_kind"] != "unavailable"]
    reached = known["time_to_target_kind"] == "measured"
    row = {
        "target_accuracy": known["target_accuracy"].iloc[0] if len(known) else None,
        "target_reached_runs": int(reached.sum()),
    }
    if known.empty:
        return row | {"time_to_target_kind": "unavailable"}
    seconds = known["time_to_target_seconds"]
    is_open = np.isinf(np.median(seconds.where(reached, np.inf)))
    interval = median_interval(seconds) if reached.all() else Interval(None, None, None)
    return row | {
        "time_to_target_seconds": float(seconds.median()),
        "time_to_target_low_seconds": interval.low,
        "time_to_target_high_seconds": interval.high,
        "time_to_target_kind": "censored" if is_open else "measured",
    }
