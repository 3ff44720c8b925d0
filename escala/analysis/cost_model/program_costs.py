"""Make the part of a calibration that bounds programs, from the runs that calibrate them.

`escala.analysis.cost_model.calibrating` names these runs. A run that did not end ok leaves its
reason instead of its times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from escala.analysis.comparable import unlike_machines
from escala.analysis.cost_model.computing import expected_largest
from escala.analysis.measurements import read_run
from escala.record import collect

#: Bytes of the gradient of a parameter, if the program does not state them.
BYTES = 4
_SUM = re.compile(r"allreduce_(\d+)")
_BESIDE = "beside_"


def program_costs(sources: Mapping[str, Mapping]) -> tuple[dict[str, dict], list[Mapping]]:
    """Return the programs of a calibration by name, and the machines that they were measured on.

    Parameters
    ----------
    sources : files of runs, as `Calibration.sources` returns them under `programs`.
    """
    found, machines = {}, []
    for name, files in sources.items():
        runs = list(map(read_run, chain(*files["steps"])))
        sums = [list(map(read_run, group)) for group in files["sums"]]
        machines += [
            run["ranks"]["machines"][0] for run in chain(runs, *sums) if run["status"] == "ok"
        ]
        found[name] = _program(runs, sums, files["gradient_bytes"])
    return found, machines


def _program(
    runs: Sequence[Mapping], sums: Sequence[Sequence[Mapping]], stated: int | None
) -> dict:
    reason, parameters = _unavailable(runs, sums), None
    found = {"unavailable": reason, "steps": [], "epoch_rows": None, "exchanges": []}
    if reason is None:
        parameters = next((p for run in runs if (p := run["training"]["parameters"])), None)
        counted = [_rows_of_epoch(run) for run in runs]
        by_rows: dict[int, list[float]] = {}
        for run in runs:
            by_rows.setdefault(run["training"]["global_batch"], []).append(_seconds_of_step(run))
        found |= {
            "steps": [{"rows": rows, "seconds": each} for rows, each in by_rows.items()],
            "epoch_rows": round(float(np.median(counted))),
            "exchanges": [_exchange(group, runs) for group in sums],
        }
    told = None if parameters is None else BYTES * parameters
    return found | {"gradient_bytes": told if stated is None else stated}


def _unavailable(runs: Sequence[Mapping], sums: Sequence[Sequence[Mapping]]) -> str | None:
    """Return why a program has no bounds, or None."""
    for run in runs:
        if run["status"] != "ok":
            return f"a run of one process did not end ok: {run['reason']}"
        if any(epoch["steps"] is None for epoch in run["epochs"]):
            return "its steps are not known: it does not call the hook, and has no step_ends"
    measured = [run for run in chain(runs, *sums) if run["status"] == "ok"]
    for run in measured:
        first = measured[0]["ranks"]["machines"]
        if reason := unlike_machines(first, run["ranks"]["machines"]):
            return reason
    return None


def _seconds_of_step(run: Mapping) -> float:
    """Return the mean seconds of a step. A run of several epochs does not list its first one."""
    epochs = run["epochs"]
    return sum(each["train_seconds"] for each in epochs) / sum(each["steps"] for each in epochs)


def _rows_of_epoch(run: Mapping) -> float:
    """Return the rows of an epoch: as counted by the hook, or those of its steps."""
    first = run["epochs"][0]
    return first["rows"] or first["steps"] * run["training"]["global_batch"]


def _exchange(group: Sequence[Mapping], runs: Sequence[Mapping]) -> dict:
    """Return the times of sums on a layout, of all repeats."""
    first = group[0]
    found = {
        "layout": first["layout"],
        "network": first["network"],
        "unavailable": None,
        "times": [],
        "contention": [],
        "skew": expected_largest(np.sort(_steps(runs)), first["layout"].ranks),
    }
    scores = [(run["evaluation"] or {}).get("scores", {}) for run in group if run["status"] == "ok"]
    told = [each for each in scores if any(name.startswith(_BESIDE) for name in each)]
    if not told:
        failed = next((run["reason"] for run in group if run["reason"]), "nothing was told")
        return found | {"unavailable": failed}
    sizes = sorted(int(match[1]) for name in told[0] if (match := _SUM.fullmatch(name)))
    return found | {
        "times": [
            {"bytes": size, "seconds": [each[f"allreduce_{size}"] for each in told]}
            for size in sizes
        ],
        "contention": [
            max(value for name, value in each.items() if name.startswith(_BESIDE)) for each in told
        ],
    }


def _steps(runs: Sequence[Mapping]) -> np.ndarray:
    """Return steps of one process over the mean of their run, of all runs."""
    found = []
    for run in runs:
        table = collect.read_steps(Path(run["file"]).parent / "ranks", 1)
        seconds = (table["input_seconds"] + table["step_seconds"]).to_numpy()
        found.append(seconds / seconds.mean())
    return np.concatenate(found)
