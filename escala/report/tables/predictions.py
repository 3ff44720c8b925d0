"""Build the table of predicted times beside measured ones.

The cost model's calibration holds none of the runs that it is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from escala.core.files import read_json
from escala.record.comparable import CONFIGURATION, Measurement, alike_machines
from escala.report.tables.base import Evidence, by_configuration, epochs_to_target, over
from escala.report.tables.configurations import to_target


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each configuration of the predictions; none without predictions."""
    if evidence.predictions_file is None:
        return
    content = read_json(evidence.predictions_file)
    found = by_configuration(evidence.found)
    for row in content["configurations"]:
        measured = found.get(tuple(row[name] for name in CONFIGURATION), [])
        yield (
            row
            | _measured(evidence, row, measured, content["machine"])
            | _predicted_to_target(evidence, row)
        )


def _measured(
    evidence: Evidence, row: Mapping, measured: Sequence[Measurement], machine: Mapping
) -> dict:
    """Return the measured times on machines like the calibrated one, and the error."""
    verdicts = [
        (run["file"], alike_machines([machine], run["ranks"]["machines"][:1])) for run in measured
    ]
    files = [file for file, verdict in verdicts if verdict.ok]
    table = evidence.runs
    is_timed = (table["status"] == "ok") & table["comparable"] & (table["resumptions"] == 0)
    timed = table[is_timed & table["file"].isin(files)]
    seconds = over(timed, "train_seconds_per_epoch")
    reasons = [verdict.reason for _, verdict in verdicts if not verdict.ok]
    target = to_target(timed)
    reached = target["time_to_target_kind"] == "measured"
    found = {
        "runs": len(timed),
        "measured_seconds_to_target": target["time_to_target_seconds"] if reached else None,
        **seconds.columns("measured", "_seconds_per_epoch"),
        "uncompared": "; ".join(dict.fromkeys(reasons)) or None,
    }
    predicted = row.get("predicted_seconds_per_epoch")
    low, high = (row.get(f"predicted_{end}_seconds_per_epoch") for end in ("low", "high"))
    if low is None or seconds.estimate is None:
        return found
    return found | {
        "error": None if predicted is None else predicted / seconds.estimate - 1,
        "covered": int(timed["train_seconds_per_epoch"].between(low, high).sum()),
    }


def _predicted_to_target(evidence: Evidence, row: Mapping) -> dict:
    """Return the predicted seconds of several ranks until the target accuracy.

    The epochs are those of the runs of one process with the same rows in a step. With the same
    updates, several ranks need as many. With dropout, with normalisation of each rank's rows or
    with fp16, they make other ones.
    """
    if row["ranks"] == 1:
        return {}
    epochs = [
        epochs_to_target(run) or np.inf for run in evidence.evaluated if _has_same_steps(run, row)
    ]
    needed = float(np.median(epochs)) if epochs else np.inf
    if row.get("predicted_seconds_per_epoch") is None or np.isinf(needed):
        return {}
    return {
        "epochs_to_target": needed,
        "predicted_seconds_to_target": needed * row["predicted_seconds_per_epoch"],
        "predicted_low_seconds_to_target": min(epochs) * row["predicted_low_seconds_per_epoch"],
        "predicted_high_seconds_to_target": (
            max(epochs) * row["predicted_high_seconds_per_epoch"]
            if np.isfinite(max(epochs))
            else None
        ),
    }


def _has_same_steps(run: Measurement, row: Mapping) -> bool:
    """Return whether a run of one process, with a target, has the steps of a prediction."""
    training = run["training"]
    return (
        run["ranks"]["asked"] == 1
        and training.get("target_accuracy") is not None
        and training["global_batch"] == row.get("global_batch")
        and all(run[name] == row[name] for name in ("dataset", "workload", "variant"))
    )
