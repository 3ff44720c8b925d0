"""Record the moments of every step of each rank, in a separate run.

Moments are seconds since the epoch. On one machine all ranks and Horovod's timeline use the same
clock: the time of day at the first step, without later corrections of it. Inside a compiled step, a
moment is read when its tensor has been computed. Where ranks make a step by several calls, moments
between these calls are read too, and the tensors are the buckets in which gradients are summed.

At five moments of a step a rank also reads what it has used of its cores (`OnCore`): at the begin
and the end of the step, when its rows are gathered, when its last gradient is ready, and when the
last sum has arrived. At the begin of the first step of an epoch it reads nothing.
"""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from escala.probes.base import Probe, section, value
from escala.strategies.base import RAW_TIMELINE, TIMELINE_FILES

REPEATS = 3

#: The columns of `rank{r}.clocks.csv`; `tensor` is empty for a moment of the whole step. `SAMPLED`
#: are the fields of a `Sample`, empty at moments without a sample.
SAMPLED = ("core_seconds", "queue_seconds", "idle_seconds")
COLUMNS = ("epoch", "step", "moment", "tensor", "seconds", *SAMPLED)
#: Moments outside the step. Moments of the whole step, and of each tensor in it, follow.
GATHER_BEGINS, GATHER_ENDS, RETURNED = OUTSIDE = ("gather_begins", "gather_ends", "returned")
STEP_BEGINS = "step_begins"
#: Further moments of the whole step, if several calls make a step. A forward pass that is made in
#: parts has no moment.
FORWARD_ENDS, BACKWARD_ENDS, UPDATE_BEGINS = "forward_ends", "backward_ends", "update_begins"
#: Moments at which samples are taken inside a step: the step begins, the last gradient is ready,
#: and the last sum has arrived.
ENTERED, COMPUTED, SUMMED = "entered", "computed", "summed"
GRADIENT_READY, EXCHANGED, UPDATED = TENSOR_MOMENTS = ("gradient_ready", "exchanged", "updated")


class MomentsWriter:
    """Writes moments of the steps of one process, with the columns `COLUMNS`, to the file `path`.

    An engine's recorder adds the moments inside a step. Moments are in seconds of
    `time.perf_counter`.
    """

    def __init__(self, path: Path):
        self._path, self._rows, self._offset = path, [], clock_offset()
        self._on_core = OnCore()
        # The epoch of the last step, and the sample at its end.
        self._last: tuple[int, Sample] | None = None

    def inside(self, gathered: float, returned: float) -> Iterable[tuple[str, str, float]]:
        """Return the moments inside the step just made: moment, tensor, seconds.

        The step began after `gathered` and ended before `returned`.
        """
        return ()

    def samples(self, gathered: float, returned: float) -> Iterable[tuple[str, Sample]]:
        """Return the samples inside the step just made, by `ENTERED`, `COMPUTED` and `SUMMED`."""
        return ()

    def note(self, epoch: int, step: int, began: float, gathered: float, returned: float) -> None:
        """Record the moments of a finished step."""
        end = self._on_core.sample(idle=True)
        sampled = dict(self.samples(gathered, returned))
        if sampled:
            sampled[RETURNED] = end
            if self._last and self._last[0] == epoch:
                sampled[GATHER_BEGINS] = self._last[1]
        outside = zip(OUTSIDE, ("", "", ""), (began, gathered, returned), strict=True)
        others = [(name, "", sample.at) for name, sample in sampled.items() if name not in OUTSIDE]
        for moment, tensor, at in (*outside, *self.inside(gathered, returned), *others):
            sample = sampled.get(moment) if not tensor else None
            used = ["" if math.isnan(part) else part for part in sample[1:]] if sample else [""] * 3
            self._rows.append((epoch, step, moment, tensor, at + self._offset, *used))
        self._on_core.find_threads()
        self._last = epoch, self._on_core.sample(idle=True)

    def write(self) -> None:
        with open(self._path, "w", newline="", encoding="utf-8") as handle:
            csv.writer(handle).writerows([COLUMNS, *self._rows])


def clock_offset() -> float:
    """Return the time of day minus `time.perf_counter`, in seconds.

    A process that loses its core between the two calls reads too small a difference. So the largest
    of several differences is the most exact.
    """
    return max(time.time() - time.perf_counter() for _ in range(3))


class Clocks(Probe):
    """The moments of the steps of every rank, and the timeline of its library."""

    settings = section(
        "Separate runs of every gradient-trained configuration, in which each rank notes the "
        "moments of its steps, to split them into parts.",
        enabled=True,
        repeats=value(
            "integer",
            "Runs of each configuration, spread among the repeats; an interval needs two.",
            minimum=1,
            maximum=1000,
            default=REPEATS,
            determines_run=False,
        ),
        steps=value("integer", "Steps of such a run, at most one epoch.", minimum=1, default=60),
    )
    products = TIMELINE_FILES
    temporary = (RAW_TIMELINE,)
    tabulated = True
    compared = True
    records_steps = True

    @classmethod
    def applies(cls, run):
        return super().applies(run) and run.declared.strategy.waits()

    def environment(self, strategy):
        # The clocks record when each rank was ready.
        return strategy.timeline_environment(self.folder / RAW_TIMELINE, negotiation=False)


class Sample(NamedTuple):
    """Counters of a process at a moment.

    Attributes
    ----------
    at : the moment, in seconds of `time.perf_counter`.
    core_seconds : CPU time of all its threads, divided by the number of its cores.
    queue_seconds : time that its threads were ready without running, summed; NaN if the kernel does
        not count this time.
    idle_seconds : mean time for which its cores idled; NaN if this time was not read.
    """

    at: float
    core_seconds: float
    queue_seconds: float
    idle_seconds: float


class OnCore:
    """How long the threads of this process ran and waited for a core, and how long cores idled.

    A thread that is ready and does not run is in the queue of a core: `run_delay`, the second
    number of Linux's `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst).
    Threads of one process wait for each other, too. So the time that a process lost to others is
    at most the least of three: the time of its threads in queues; the time of its cores less its
    CPU time; and the time of its cores less its CPU time and less their idle time. Time that a
    hypervisor takes from a virtual core is in none of the three.

    Threads that begin are counted from the next `find_threads` on.
    """

    def __init__(self):
        self._cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        self._files: dict[str, int] = {}
        self._queued: dict[str, int] = {}
        self.find_threads()

    def find_threads(self) -> None:
        """Open the statistics of new threads, and close those of threads that have ended."""
        threads = {path.name for path in Path("/proc/self/task").iterdir()}
        for thread in self._files.keys() - threads:
            os.close(self._files.pop(thread))
        for thread in threads - self._files.keys():
            try:
                path = f"/proc/self/task/{thread}/schedstat"
                self._files[thread] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # The thread has ended, or the kernel has no such statistics.
                continue

    def sample(self, idle: bool = False) -> Sample:
        """Return what the process has used until now; with `idle`, also how long its cores idled.

        Reading the idle time takes longer: the kernel lists all cores and interrupts of the
        machine.
        """
        at, used = time.perf_counter(), time.process_time()
        for thread, file in self._files.items():
            try:
                self._queued[thread] = int(os.pread(file, 64, 0).split()[1])
            except OSError:  # The thread has ended. What it waited until the last sample counts.
                continue
        queued = sum(self._queued.values()) / 1e9 if self._files else math.nan
        idle_seconds = math.nan
        if idle:
            lines = map(str.split, Path("/proc/stat").read_text(encoding="utf-8").splitlines())
            # `idle` and `iowait`: a core is idle in both (man 5 proc_stat).
            ticks = sum(sum(map(int, words[4:6])) for words in lines if words[0] in self._cores)
            idle_seconds = ticks / os.sysconf("SC_CLK_TCK") / len(self._cores)
        return Sample(at, used / len(self._cores), queued, idle_seconds)
