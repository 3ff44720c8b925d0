"""Times of one process, and of processes that compute at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from escala.analysis.cost_model.calibration import Contention, StepTimes, Work
from escala.core.errors import InputError
from escala.runtime.layout import Layout


def steps_of_cores(work: Work, cores: int) -> list[StepTimes]:
    """Return the steps of processes with this number of cores, by their rows."""
    steps = [each for each in work.steps if each.cores == cores]
    if not steps:
        known = sorted({each.cores for each in work.steps})
        raise InputError(
            "cores",
            cores,
            f"the steps of this work were calibrated with {', '.join(map(str, known))}",
            "choose one of these, or calibrate this number",
        )
    return sorted(steps, key=lambda each: each.rows)


def interpolated(steps: Sequence[StepTimes], rows: int, notes: list[str]) -> tuple[float, float]:
    """Return the seconds of a step without rows and with some, between calibrated numbers of rows.

    Outside them, the line through the two nearest continues.
    """
    known = [each.rows for each in steps]
    seconds = [float(each.means.mean()) for each in steps]
    if not known[0] <= rows <= known[-1]:
        notes.append(f"{rows} rows of a rank are outside those calibrated")
    if len(known) == 1:
        return 0.0, seconds[0] * rows / known[0]
    return _on_line(known[:2], seconds[:2], 0), _on_line(known, seconds, rows)


def _on_line(known: Sequence[float], seconds: Sequence[float], rows: float) -> float:
    """Return the seconds on the line through the two nearest numbers of rows, not below 0."""
    at = int(np.clip(np.searchsorted(known, rows) - 1, 0, len(known) - 2))
    slope = (seconds[at + 1] - seconds[at]) / (known[at + 1] - known[at])
    return max(float(seconds[at] + slope * (rows - known[at])), 0.0)


def contention(
    calibrated: Sequence[Contention],
    library: str,
    layout: Layout,
    cores: int,
    cores_per_node: int,
    notes: list[str],
) -> float:
    """Return the factor by which a step takes longer while the other ranks compute theirs.

    Without ratios of the library, those of the other libraries are used. The ratio of one process
    on a node is that of runs on several nodes, and 1 without such runs.
    """
    if layout.ranks == 1:
        return 1.0
    with_cores = [each for each in calibrated if each.cores == cores]
    from_library = [each for each in with_cores if each.library == library]
    ratios: dict[int, list[float]] = {}
    for each in from_library or with_cores:
        ratios.setdefault(each.processes, []).append(float(each.ratios.mean()))
    if layout.nodes == 1 or 1 not in ratios:
        ratios[1] = [1.0]
    processes = layout.processes
    fitting = min(processes, max(cores_per_node // cores, 1))
    known = sorted(ratios)
    if fitting > known[-1]:
        notes.append(f"{fitting} processes at a time on a node were not calibrated")
    elif fitting > 1 and not from_library:
        notes.append(f"contention was not calibrated with {library}")
    if processes > fitting:
        notes.append("more ranks than cores")
    means = [max(float(np.mean(ratios[number])), 1.0) for number in known]
    return float(np.interp(fitting, known, means)) * processes / fitting


def expected_largest(steps: np.ndarray, ranks: int) -> float:
    """Return the mean of the slowest of so many steps, divided by that of all.

    The k-th of n values is the largest of r draws with probability (k/n)^r - ((k-1)/n)^r.

    Parameters
    ----------
    steps : seconds, in increasing order.
    """
    ends = (np.arange(len(steps) + 1) / len(steps)) ** ranks
    return float(steps @ np.diff(ends) / steps.mean())
