"""The calibration of programs, and the bounds of a step that follow from it.

`program_costs` reads the runs that `escala.analysis.cost_model.calibrating` names. A run that did
not end ok leaves its reason instead of its times. `step_bounds` returns bounds of the step on a
layout without a run:

    max(compute, exchange)  ≤  step  ≤  contention · skew · compute + exchange

At the lower bound, computing and exchange overlap fully. At the upper bound, they do not overlap.
Only two things are known of the program: the time of its steps in one process, by their rows, and
the bytes of its gradients. A step sums the gradients once. *Contention* is the factor by which
ranks of a node slow each other. It is measured with a kernel that uses memory and a kernel that
uses cores, and the larger factor counts. *Skew* is the mean of the slowest of n steps divided by
the mean of all steps. The lower bound is the least of all repeats, and the upper bound is the
greatest.

The ratio to one process with all rows is computed within a repeat. So the ratio also holds on a
machine that is slower later, if computing and exchange slow down by the same factor.

A program may exchange more than its gradients, or read slow data. Then its step is not within the
bounds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from escala.analysis.comparable import unlike_machines
from escala.analysis.cost_model.predict import mean_of_largest
from escala.analysis.measurements import read_run
from escala.core.errors import InputError
from escala.record import collect
from escala.runtime.layout import Layout

#: Bytes of the gradient of a parameter, if the program does not state them.
BYTES = 4
#: Names of scores of a run that times sums: the seconds of a sum by its bytes, and the factor by
#: which a kernel takes longer beside other ranks.
_SUM = re.compile(r"allreduce_(\d+)")
_BESIDE = "beside_"


def program_costs(sources: Mapping[str, Mapping]) -> tuple[dict[str, dict], list[Mapping]]:
    """Return the programs of a calibration by name, and the machines of their measurements.

    A program has the keys of `programs` in `schemas/calibration.schema.yaml`.

    Parameters
    ----------
    sources : files of runs, as `CalibrationExperiment.sources` returns them under `programs`.
    """
    costs, machines = {}, []
    for name, files in sources.items():
        runs = [*map(read_run, files["steps"])]
        sums = [[*map(read_run, group)] for group in files["sums"]]
        machines_of_runs = [
            run["ranks"]["machines"] for run in chain(runs, *sums) if run["status"] == "ok"
        ]
        machines += [first for first, *_ in machines_of_runs]
        reason, gradient_bytes = _unavailable(runs, machines_of_runs), files["gradient_bytes"]
        steps_by_rows: dict[int, list[float]] = {}
        epoch_rows, exchanges = [], []
        if reason is None:
            for run in runs:
                training, epochs = run["training"], run["epochs"]
                # The list of epochs of a run with several epochs lacks the first epoch.
                seconds = sum(epoch["train_seconds"] for epoch in epochs)
                batch = training["global_batch"]
                steps_by_rows.setdefault(batch, []).append(
                    seconds / sum(epoch["steps"] for epoch in epochs)
                )
                # The hook in the program (`escala/hook`) counts rows only if the script reports
                # rows. Otherwise it counts steps only.
                epoch_rows.append(epochs[0]["rows"] or epochs[0]["steps"] * batch)
                if gradient_bytes is None and training["parameters"]:
                    gradient_bytes = BYTES * training["parameters"]
            relative_seconds = []
            for run in runs:
                table = collect.read_steps(Path(run["file"]).parent / "ranks", 1)
                seconds = (table["input_seconds"] + table["step_seconds"]).to_numpy()
                relative_seconds.append(seconds / seconds.mean())
            ordered = np.sort(np.concatenate(relative_seconds))
            exchanges = [_exchange(group, ordered) for group in sums]
        costs[name] = {
            "unavailable": reason,
            "steps": [
                {"rows": rows, "seconds": seconds} for rows, seconds in steps_by_rows.items()
            ],
            "epoch_rows": round(float(np.median(epoch_rows))) if epoch_rows else None,
            "gradient_bytes": gradient_bytes,
            "exchanges": exchanges,
        }
    return costs, machines


def _unavailable(runs: Sequence[Mapping], machines: Sequence[Sequence[Mapping]]) -> str | None:
    """Return why a program has no bounds, or None.

    `machines` are the machines of each run that ended ok.
    """
    for run in runs:
        if run["status"] != "ok":
            return f"a run of one process did not end ok: {run['reason']}"
        if any(epoch["steps"] is None for epoch in run["epochs"]):
            return "its steps are not known: it does not call the hook, and has no step_ends"
    return next(filter(None, (unlike_machines(machines[0], others) for others in machines)), None)


def _exchange(group: Sequence[Mapping], relative_seconds: np.ndarray) -> dict:
    """Return the times of sums on a layout, of all repeats.

    Parameters
    ----------
    group : the runs that timed the sums, one for each repeat.
    relative_seconds : of the steps of one process, as in `calibration.StepTimes`.
    """
    layout, network = group[0]["layout"], group[0]["network"]
    scores = [(run["evaluation"] or {}).get("scores", {}) for run in group if run["status"] == "ok"]
    repeats = [values for values in scores if any(name.startswith(_BESIDE) for name in values)]
    names = repeats[0] if repeats else {}
    sizes = sorted(int(match[1]) for name in names if (match := _SUM.fullmatch(name)))
    reason = None
    if not repeats:
        reason = next((run["reason"] for run in group if run["reason"]), "no times were reported")
    return {
        "layout": layout,
        "network": network,
        "unavailable": reason,
        "times": [
            {"bytes": size, "seconds": [repeat[f"allreduce_{size}"] for repeat in repeats]}
            for size in sizes
        ],
        "contention": [
            max(ratio for name, ratio in repeat.items() if name.startswith(_BESIDE))
            for repeat in repeats
        ],
        "skew": mean_of_largest(relative_seconds, layout.ranks),
    }


class Bounds(NamedTuple):
    """Least and greatest seconds of a step and of its parts.

    Attributes
    ----------
    ratio : the step's time divided by that of one process with the rows of all ranks.
    """

    step: tuple[float, float]
    compute: tuple[float, float]
    exchange: tuple[float, float]
    ratio: tuple[float, float]


def step_bounds(program: Mapping, layout: Layout, network: str, rows: int) -> Bounds:
    """Return the bounds of a step.

    Parameters
    ----------
    program : as `programs` of a calibration (`schemas/calibration.schema.yaml`).
    network : network between nodes; without effect within one node.
    rows : rows of all ranks. A rank takes at most an equal part, rounded up.

    Raises
    ------
    InputError : a value that the bounds need was not measured; the message names the value.
    """
    if program["unavailable"]:
        raise _cannot_bound(program["unavailable"], "correct it, and calibrate again")
    ranks, repeats = layout.ranks, _repeats(program["steps"])
    # For each repeat, the seconds of one process with all rows, and of a rank with its rows.
    one_process = [compute_seconds(program["steps"], repeat, rows) for repeat in repeats]
    rank_seconds = [
        compute_seconds(program["steps"], repeat, -(-rows // ranks)) for repeat in repeats
    ]
    compute = min(rank_seconds), max(rank_seconds)
    if ranks == 1:
        return Bounds(compute, compute, (0.0, 0.0), (1.0, 1.0))
    if program["gradient_bytes"] is None:
        raise _cannot_bound(
            "the bytes of its gradients are not known",
            "state gradient_bytes of the program, or call begin(parameters=…) of the hook",
        )
    sums = next(
        (
            exchange
            for exchange in program["exchanges"]
            if exchange["layout"] == layout
            and (layout.nodes == 1 or exchange["network"] == network)
        ),
        None,
    )
    if sums is None:
        raise _cannot_bound(
            f"sums were not timed on {layout}", "calibrate where this layout can be started"
        )
    if sums["unavailable"]:
        raise _cannot_bound(f"sums could not be timed: {sums['unavailable']}", "see the run's log")
    exchange = (0.0, 0.0)
    if program["gradient_bytes"]:
        seconds = [
            sum_seconds(sums["times"], repeat, program["gradient_bytes"])
            for repeat in _repeats(sums["times"])
        ]
        exchange = min(seconds), max(seconds)
    slowdown = max(1.0, *sums["contention"]) * sums["skew"]
    low = [max(seconds, exchange[0]) for seconds in rank_seconds]
    high = [slowdown * seconds + exchange[1] for seconds in rank_seconds]
    ratio = float(np.min(np.divide(low, one_process))), float(np.max(np.divide(high, one_process)))
    return Bounds((min(low), max(high)), compute, exchange, ratio)


def compute_seconds(steps: Sequence[Mapping], repeat: int, rows: float) -> float:
    """Return the seconds of a step of `rows` rows: fixed seconds, and seconds for each row.

    Both are fitted by least squares of relative differences, and are at least 0.
    """
    sizes = np.array([timed["rows"] for timed in steps], float)
    measured = np.array([timed["seconds"][repeat] for timed in steps])
    columns = np.column_stack([np.ones_like(sizes), sizes]) / measured[:, None]
    fixed, per_row = nnls(columns, np.ones_like(sizes))[0]
    return float(fixed + per_row * rows)


def sum_seconds(times: Sequence[Mapping], repeat: int, size: float) -> float:
    """Return the seconds of a sum of `size` bytes, interpolated between measured sizes.

    Beyond the largest size, the time is proportional to the bytes.
    """
    sizes = np.array([time["bytes"] for time in times], float)
    seconds = np.array([time["seconds"][repeat] for time in times])
    return float(np.interp(size, sizes, seconds) * max(1.0, size / sizes[-1]))


def _repeats(times: Sequence[Mapping]) -> range:
    return range(min(len(time["seconds"]) for time in times))


def _cannot_bound(reason: str, remedy: str) -> InputError:
    return InputError("program", None, reason, remedy)
