"""The calibration of programs, and the bounds of a step that follow from it.

`program_costs` reads the runs that `escala.analysis.cost_model.calibrating` names. A run that did
not end ok leaves its reason instead of its times. `step_bounds` bounds the step on a layout that
was not run:

    max(compute, exchange)  ≤  step  ≤  contention · skew · compute + exchange

With full overlap, computing hides the exchange or the other way round; without any, one follows the
other. Nothing of the program is known but the time of its steps in one process, by their rows, and
the bytes of its gradients, which are summed once in a step. *Contention* is the most that ranks of
a node slow each other, over work on memory and on cores. *Skew* is the mean of the slowest of n
steps over that of all. Each end is that of the least or the greatest of the repeats.

The ratio to one process with all rows is of the same repeat, so it also holds on a machine that is
slower later, as far as computing and exchange slow down alike.

A program may exchange more than its gradients, or read slow data. Then its step is outside.
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
_SUM = re.compile(r"allreduce_(\d+)")
_BESIDE = "beside_"


def program_costs(sources: Mapping[str, Mapping]) -> tuple[dict[str, dict], list[Mapping]]:
    """Return the programs of a calibration by name, and the machines that they were measured on.

    Parameters
    ----------
    sources : files of runs, as `Calibration.sources` returns them under `programs`.
    """
    costs, machines = {}, []
    for name, files in sources.items():
        runs = [*map(read_run, files["steps"])]
        sums = [[*map(read_run, group)] for group in files["sums"]]
        ended = [run["ranks"]["machines"] for run in chain(runs, *sums) if run["status"] == "ok"]
        machines += [first for first, *_ in ended]
        reason, gradient_bytes = _unavailable(runs, ended), files["gradient_bytes"]
        steps_by_rows: dict[int, list[float]] = {}
        epoch_rows, exchanges = [], []
        if reason is None:
            for run in runs:
                training, epochs = run["training"], run["epochs"]
                # A run of several epochs does not list its first one.
                seconds = sum(epoch["train_seconds"] for epoch in epochs)
                steps_by_rows.setdefault(training["global_batch"], []).append(
                    seconds / sum(epoch["steps"] for epoch in epochs)
                )
                # As counted by the hook, or those of its steps.
                epoch_rows.append(
                    epochs[0]["rows"] or epochs[0]["steps"] * training["global_batch"]
                )
                if gradient_bytes is None and training["parameters"]:
                    gradient_bytes = BYTES * training["parameters"]
            relative = []
            for run in runs:
                table = collect.read_steps(Path(run["file"]).parent / "ranks", 1)
                seconds = (table["input_seconds"] + table["step_seconds"]).to_numpy()
                relative.append(seconds / seconds.mean())
            relative_steps = np.sort(np.concatenate(relative))
            exchanges = [_exchange(group, relative_steps) for group in sums]
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
    """Return why a program has no bounds, or None."""
    for run in runs:
        if run["status"] != "ok":
            return f"a run of one process did not end ok: {run['reason']}"
        if any(epoch["steps"] is None for epoch in run["epochs"]):
            return "its steps are not known: it does not call the hook, and has no step_ends"
    return next(filter(None, (unlike_machines(machines[0], others) for others in machines)), None)


def _exchange(group: Sequence[Mapping], relative_steps: np.ndarray) -> dict:
    """Return the times of sums on a layout, of all repeats.

    Parameters
    ----------
    relative_steps : steps of one process over the mean of their run, in increasing order.
    """
    layout, network = group[0]["layout"], group[0]["network"]
    scores = [(run["evaluation"] or {}).get("scores", {}) for run in group if run["status"] == "ok"]
    repeats = [score for score in scores if any(name.startswith(_BESIDE) for name in score)]
    sizes = sorted(
        int(match[1]) for name in (repeats or [{}])[0] if (match := _SUM.fullmatch(name))
    )
    reason = None
    if not repeats:
        reason = next((run["reason"] for run in group if run["reason"]), "nothing was told")
    return {
        "layout": layout,
        "network": network,
        "unavailable": reason,
        "times": [
            {"bytes": size, "seconds": [repeat[f"allreduce_{size}"] for repeat in repeats]}
            for size in sizes
        ],
        "contention": [
            max(value for name, value in repeat.items() if name.startswith(_BESIDE))
            for repeat in repeats
        ],
        "skew": mean_of_largest(relative_steps, layout.ranks),
    }


class Bounds(NamedTuple):
    """Seconds of a step, and of its parts, each with its least and greatest value.

    Attributes
    ----------
    ratio : of the step to that of one process with the rows of all ranks.
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
    network : between nodes; without effect within one node.
    rows : of all ranks; a rank takes at most an equal part, rounded up.

    Raises
    ------
    InputError : something that they need was not measured, and what.
    """
    if program["unavailable"]:
        raise _cannot_bound(program["unavailable"], "correct it, and calibrate again")
    ranks, repeats = layout.ranks, _repeats(program["steps"])
    alone = [compute_seconds(program["steps"], repeat, rows) for repeat in repeats]
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
    timed = [
        entry
        for entry in program["exchanges"]
        if entry["layout"] == layout and (layout.nodes == 1 or entry["network"] == network)
    ]
    if not timed:
        raise _cannot_bound(
            f"sums were not timed on {layout}", "calibrate where this layout can be started"
        )
    [sums] = timed
    if sums["unavailable"]:
        raise _cannot_bound(f"sums could not be timed: {sums['unavailable']}", "see the run's log")
    exchange = (0.0, 0.0)
    if program["gradient_bytes"]:
        seconds = [
            sum_seconds(sums["times"], n, program["gradient_bytes"])
            for n in _repeats(sums["times"])
        ]
        exchange = min(seconds), max(seconds)
    slower = max(1.0, *sums["contention"]) * sums["skew"]
    low = [max(one, exchange[0]) for one in rank_seconds]
    high = [slower * one + exchange[1] for one in rank_seconds]
    ratio = (
        min(end / one for end, one in zip(low, alone, strict=True)),
        max(end / one for end, one in zip(high, alone, strict=True)),
    )
    return Bounds((min(low), max(high)), compute, exchange, ratio)


def compute_seconds(steps: Sequence[Mapping], repeat: int, rows: float) -> float:
    """Return the time of a step of `rows` rows: a fixed part, and one for each row.

    It is fitted by least squares of relative differences, and neither part is below 0.
    """
    sizes = np.array([entry["rows"] for entry in steps], float)
    measured = np.array([entry["seconds"][repeat] for entry in steps])
    columns = np.column_stack([np.ones_like(sizes), sizes]) / measured[:, None]
    fixed, per_row = nnls(columns, np.ones_like(sizes))[0]
    return float(fixed + per_row * rows)


def sum_seconds(times: Sequence[Mapping], repeat: int, size: float) -> float:
    """Return the time of a sum of `size` bytes, interpolated between measured sizes.

    Beyond the largest size, time is in proportion to the bytes.
    """
    sizes = np.array([time["bytes"] for time in times], float)
    seconds = np.array([time["seconds"][repeat] for time in times])
    return float(np.interp(size, sizes, seconds) * max(1.0, size / sizes[-1]))


def _repeats(times: Sequence[Mapping]) -> range:
    return range(min(len(time["seconds"]) for time in times))


def _cannot_bound(reason: str, remedy: str) -> InputError:
    return InputError("program", None, reason, remedy)
