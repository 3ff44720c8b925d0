"""How fast the cores of a machine are: the seconds of a fixed kernel on each of them.

The kernel repeats a *round* `ROUNDS` times, about 50 ms in all on a processor of 2023. A round adds
a vector that fits into the cache of a core 400 times to a sum, and copies 8 MiB, which do not fit.
So it shows the clock rate, and what others leave of the memory. Each half of a round is one call of
NumPy, which holds no lock of Python and starts no threads.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

ROUNDS = 20
#: Elements of the vector, how often a round adds it, and elements of the copy.
_ADDED, _TIMES, _COPIED = 2**15, 400, 2**21
#: Kernels of which `speed_seconds` takes the fastest sum.
_SCORED = 2


class Seconds(NamedTuple):
    """The time of the kernel on one core.

    Attributes
    ----------
    wall : from its beginning to its end. What takes the core away lengthens it.
    cpu : on the core. Clock rate, other hardware threads of the core, the memory's other users and,
        on most virtual machines, other machines' use of the core lengthen it.
    least : on the core, of the fastest sum of a round, about 1.7 ms: the speed of the core, without
        most of these.
    """

    wall: float
    cpu: float
    least: float


def seconds_of_kernel(cores: Sequence[int]) -> list[Seconds]:
    """Run the kernel at the same time on each of some cores, which this process may use.

    Returns
    -------
    The seconds of each core, in the order of `cores`.

    Raises
    ------
    ValueError : this process may not use one of the cores.
    """
    if missing := set(cores) - os.sched_getaffinity(0):
        raise ValueError(f"cores that this process may not use: {sorted(missing)}")
    seconds: dict[int, Seconds] = {}
    together = threading.Barrier(len(cores))

    def measure(core: int) -> None:
        os.sched_setaffinity(0, {core})  # Of this thread.
        vector = np.broadcast_to(np.ones(_ADDED, np.float32), (_TIMES, _ADDED))
        total, source = np.zeros(_ADDED, np.float32), np.ones(_COPIED, np.float32)
        target = source.copy()  # The system clears its pages before the time begins.
        cpu, sums = 0.0, []
        together.wait()
        began = time.perf_counter()
        for _ in range(ROUNDS):
            before = time.thread_time()
            np.add.reduce(vector, axis=0, out=total)
            added = time.thread_time()
            np.copyto(target, source)
            sums.append(added - before)
            cpu += time.thread_time() - before
        seconds[core] = Seconds(time.perf_counter() - began, cpu, min(sums))

    threads = [threading.Thread(target=measure, args=(core,)) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [seconds[core] for core in cores]


def speed_seconds(core: int) -> float:
    """Return the time of the fastest sum of `_SCORED` kernels, in about 0.1 s: a core's speed."""
    return min(seconds_of_kernel([core])[0].least for _ in range(_SCORED))
