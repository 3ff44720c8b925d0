"""Time work in turns and print the spread of what was measured, for all benchmarks.

It imports little: some benchmarks measure the memory of a process that imports it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence


def seconds(work: Callable[..., object], *arguments: object) -> float:
    """Return how long work took."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def turns(ways: Sequence, number: int) -> Sequence:
    """Return ways in the order of a round: one round forwards, the next one backwards."""
    return ways[:: 1 if number % 2 == 0 else -1]


def spread(values: Sequence[float], form: str = ".4g") -> str:
    """Return the median, the range and the number of some values."""
    low, middle, high = (f"{f(values):{form}}" for f in (min, statistics.median, max))
    return f"{middle} ({low} to {high}, n = {len(values)})"


def interval(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, and its 95 % interval where there are enough values for one."""
    from escala.analysis.statistics import median_interval

    estimate, low, high = median_interval(values)
    between = "" if low is None else f" ({low:.{digits}f} to {high:.{digits}f})"
    return f"{estimate:.{digits}f}{between}"


def on_cores(count: int = 1) -> None:
    """Keep this process and its threads on so many of its cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def tensorflow_threads(count: int = 1, inter_op: int = 1) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(inter_op)
