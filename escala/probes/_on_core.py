"""Read how long the threads of this process have run, and how long they waited for a core.

A thread that is ready and does not run is in the queue of a core: `run_delay`, the second number of
Linux's `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst). Threads of one
process wait for each other, too. A process that loses a core to others has both: threads in queues,
and less CPU time than its cores have. So the smaller of the two is what it lost at most.

Time that a hypervisor takes from a virtual core is in neither.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import NamedTuple


class Sample(NamedTuple):
    """What a process has used until a moment.

    Attributes
    ----------
    at : the moment, in seconds of `time.perf_counter`.
    core_seconds : CPU time of all its threads, divided by the number of its cores.
    queue_seconds : time that its threads were ready without running, summed; NaN if the kernel does
        not tell it.
    """

    at: float
    core_seconds: float
    queue_seconds: float


class OnCore:
    """Samples of one process. Threads that begin are counted from the next `find_threads` on."""

    def __init__(self):
        self._cores = len(os.sched_getaffinity(0))
        self._files: dict[str, int] = {}
        self._queued: dict[str, int] = {}
        self.find_threads()

    def find_threads(self) -> None:
        """Open the statistics of new threads, and close those of threads that have ended."""
        threads = {each.name for each in Path("/proc/self/task").iterdir()}
        for thread in self._files.keys() - threads:
            os.close(self._files.pop(thread))
        for thread in threads - self._files.keys():
            try:
                path = f"/proc/self/task/{thread}/schedstat"
                self._files[thread] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # It has ended, or the kernel has no such statistics.
                continue

    def sample(self) -> Sample:
        """Return what the process has used until now."""
        at, used = time.perf_counter(), time.process_time()
        for thread, file in self._files.items():
            try:
                self._queued[thread] = int(os.pread(file, 64, 0).split()[1])
            except OSError:  # It has ended; what it waited before counts.
                continue
        queued = sum(self._queued.values()) / 1e9 if self._files else math.nan
        return Sample(at, used / self._cores, queued)
