"""The table of predicted times alongside measured ones, of a whole epoch.

The cost model's calibration holds none of the runs that it is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from escala.analysis.comparable import CONFIGURATION, Measurement, unlike_machines
from escala.core.files import read_json
from escala.report.tables import base
from escala.report.tables.base import Evidence, Tables
from escala.report.tables.runs import median_to_target


def predictions(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each configuration of the predictions; none without predictions."""
    if evidence.predictions_file is None:
        return
    content = read_json(evidence.predictions_file)
    by_name = base.by_configuration(evidence.runs)
    for row in content["configurations"]:
        runs = by_name.get(tuple(row[name] for name in CONFIGURATION), [])
        found = _measured(row, runs, content["machine"], tables["runs"])
        yield row | found | _predicted_to_target(evidence, row)


def _measured(
    row: Mapping, runs: Sequence[Measurement], machine: Mapping, table: pd.DataFrame
) -> dict:
    """Return the measured times on machines like the calibrated one, and the error."""
    unlike = {run["file"]: unlike_machines([machine], run["ranks"]["machines"][:1]) for run in runs}
    alike = [file for file, reason in unlike.items() if reason is None]
    usable = base.timed(table)[lambda frame: frame["file"].isin(alike)]
    seconds, target = base.over(usable, "train_seconds_per_epoch"), median_to_target(usable)
    found = {
        "runs": len(usable),
        "measured_seconds_to_target": target["time_to_target_seconds"]
        if target["time_to_target_kind"] == "measured"
        else None,
        **seconds.columns("measured", "_seconds_per_epoch"),
        "uncompared": "; ".join(dict.fromkeys(filter(None, unlike.values()))) or None,
    }
    predicted, low, high = (
        row.get(f"predicted{end}_seconds_per_epoch") for end in ("", "_low", "_high")
    )
    if seconds.estimate is None:
        return found
    measured = usable["train_seconds_per_epoch"]
    return found | {
        "error": None if predicted is None else predicted / seconds.estimate - 1,
        "covered": None if low is None else int(measured.between(low, high).sum()),
    }


def _predicted_to_target(evidence: Evidence, row: Mapping) -> dict:
    """Return the predicted seconds of several ranks until the target accuracy.

    The epochs are those of the runs of one process with the same rows in a step. With the same
    updates, several ranks need as many. With dropout, with normalisation of each rank's rows or
    with fp16, they make other ones.
    """
    seconds = row.get("predicted_seconds_per_epoch")
    epochs = [
        base.epochs_to_target(run) or np.inf
        for run in evidence.evaluated
        if _has_same_steps(run, row)
    ]
    needed = float(np.median(epochs)) if epochs else np.inf
    if row["ranks"] == 1 or seconds is None or np.isinf(needed):
        return {}
    found = {"epochs_to_target": needed, "predicted_seconds_to_target": needed * seconds}
    low, high = (row[f"predicted_{end}_seconds_per_epoch"] for end in ("low", "high"))
    if low is None:
        return found
    most = max(epochs) * high
    return found | {
        "predicted_low_seconds_to_target": min(epochs) * low,
        "predicted_high_seconds_to_target": most if np.isfinite(most) else None,
    }


def _has_same_steps(run: Measurement, row: Mapping) -> bool:
    """Return whether a run of one process, with a target, has the steps of a prediction."""
    training = run["training"]
    return (
        run["ranks"]["asked"] == 1
        and training["target_accuracy"] is not None
        and training["global_batch"] == row.get("global_batch")
        and all(run[name] == row[name] for name in ("dataset", "workload", "variant"))
    )
