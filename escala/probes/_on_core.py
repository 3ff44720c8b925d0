"""Read how long the threads of this process ran and waited for a core, and how long cores idled.

A thread that is ready and does not run is in the queue of a core: `run_delay`, the second number of
Linux's `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst). Threads of one
process wait for each other, too. So what a process lost of its cores to others is at most the
least of three: what its threads waited in queues, what is missing of the CPU time of its cores, and
what is missing of it while the cores were not idle.

Time that a hypervisor takes from a virtual core is in none of them.
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
    idle_seconds: float


class OnCore:
    """Samples of one process. Threads that begin are counted from the next `find_threads` on."""

    def __init__(self):
        self._cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
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

    def sample(self, idle: bool = False) -> Sample:
        """Return what the process has used until now; `idle` is whether to read that of its cores.

        That takes longer: the kernel lists all cores and interrupts of the machine.
        """
        at, used = time.perf_counter(), time.process_time()
        for thread, file in self._files.items():
            try:
                self._queued[thread] = int(os.pread(file, 64, 0).split()[1])
            except OSError:  # It has ended; what it waited before counts.
                continue
        queued = sum(self._queued.values()) / 1e9 if self._files else math.nan
        idled = self._idle() if idle else math.nan
        return Sample(at, used / len(self._cores), queued, idled)

    def _idle(self) -> float:
        ticks = 0
        for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines():
            name, *numbers = line.split()
            if name in self._cores:
                # idle, and iowait, in which a core is idle as well (man 5 proc_stat).
                ticks += int(numbers[3]) + int(numbers[4])
        return ticks / os.sysconf("SC_CLK_TCK") / len(self._cores)
