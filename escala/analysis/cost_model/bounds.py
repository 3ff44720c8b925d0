"""Bound the step of a program on a layout that was not run.

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

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from escala.core.errors import InputError


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


def step_bounds(program: Mapping, layout: str, network: str, rows: int, ranks: int) -> Bounds:
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
        raise _unknown(program["unavailable"], "correct it, and calibrate again")
    repeats = _repeats(program["steps"])
    alone = [computed(program["steps"], repeat, rows) for repeat in repeats]
    rank_seconds = [computed(program["steps"], repeat, -(-rows // ranks)) for repeat in repeats]
    compute = min(rank_seconds), max(rank_seconds)
    if ranks == 1:
        return Bounds(compute, compute, (0.0, 0.0), (1.0, 1.0))
    if program["gradient_bytes"] is None:
        raise _unknown(
            "the bytes of its gradients are not known",
            "state gradient_bytes of the program, or call begin(parameters=…) of the hook",
        )
    one_node = layout.startswith("1x")
    found = [
        each
        for each in program["exchanges"]
        if each["layout"] == layout and (one_node or each["network"] == network)
    ]
    if not found:
        raise _unknown(
            f"sums were not timed on {layout}", "calibrate where this layout can be started"
        )
    [each] = found
    if each["unavailable"]:
        raise _unknown(f"sums could not be timed: {each['unavailable']}", "see the run's log")
    exchange = (0.0, 0.0)
    if program["gradient_bytes"]:
        sums = [
            summed(each["times"], n, program["gradient_bytes"]) for n in _repeats(each["times"])
        ]
        exchange = min(sums), max(sums)
    slower = max(1.0, *each["contention"]) * each["skew"]
    low = [max(one, exchange[0]) for one in rank_seconds]
    high = [slower * one + exchange[1] for one in rank_seconds]
    ratio = (
        min(end / one for end, one in zip(low, alone, strict=True)),
        max(end / one for end, one in zip(high, alone, strict=True)),
    )
    return Bounds((min(low), max(high)), compute, exchange, ratio)


def computed(steps: Sequence[Mapping], repeat: int, rows: float) -> float:
    """Return the time of a step of `rows` rows: a fixed part, and one for each row.

    It is fitted by least squares of relative differences, and neither part is below 0.
    """
    sizes = np.array([each["rows"] for each in steps], float)
    measured = np.array([each["seconds"][repeat] for each in steps])
    columns = np.column_stack([np.ones_like(sizes), sizes]) / measured[:, None]
    fixed, per_row = nnls(columns, np.ones_like(sizes))[0]
    return float(fixed + per_row * rows)


def summed(times: Sequence[Mapping], repeat: int, size: float) -> float:
    """Return the time of a sum of `size` bytes, interpolated between measured sizes.

    Beyond the largest size, time is in proportion to the bytes.
    """
    sizes = np.array([each["bytes"] for each in times], float)
    seconds = np.array([each["seconds"][repeat] for each in times])
    return float(np.interp(size, sizes, seconds) * max(1.0, size / sizes[-1]))


def _repeats(times: Sequence[Mapping]) -> range:
    return range(min(len(each["seconds"]) for each in times))


def _unknown(reason: str, remedy: str) -> InputError:
    return InputError("program", None, reason, remedy)
