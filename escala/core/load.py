"""Read how much core time all programs of a machine, and the programs of a run, have used.

All quantities are totals since the boot of the machine or the start of a process. Reading them
takes some hundred microseconds.

Programs computed while a core was neither idle nor waiting nor stolen, and served no interrupt. A
kernel without regular ticks on idle cores (`NO_HZ`, the default) measures idle times in nanoseconds
(`get_cpu_idle_time_us` in kernel/time/tick-sched.c), and rounds only their sum to whole ticks. The
counts `user` and `system` in `/proc/stat` are samples at ticks: for half-busy cores they are wrong
by several ticks in a second. The time of a process is read from its CPU clock, in nanoseconds (man
3 clock_getcpuclockid). Not used: `/proc/PID/schedstat`, which is 0 where the kernel keeps no such
statistics; `cpu.stat` of the root control group, which is the sum of the sampled counts; and
pressure, because the run itself causes it. Formats: man 5 proc, and the kernel documentation of
`accounting/psi`, `admin-guide/cgroup-v2` and `scheduler/sched-bwc`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from escala.core import children
from escala.core.hardware import control_groups
from escala.core.proc import TICK_SECONDS, stat

#: Quantities by name (see `read`); None for one that cannot be read here.
Reading = dict[str, float | None]


def cpu_seconds(pid: int) -> float:
    """Return the core time of all threads of a process; 0 if the process has ended."""
    try:
        # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) in include/linux/posix-timers_types.h.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def read(
    pids: Iterable[int],
    proc: Path = Path("/proc"),
    groups: Path = Path("/sys/fs/cgroup"),
    now: Callable[[], float] = time.monotonic,
    cpu_seconds: Callable[[int], float] = cpu_seconds,
) -> Reading:
    """Return the totals of this machine so far.

    Parameters
    ----------
    pids : ids of the processes of a run. The time of an ended process counts for its parent.
    proc, groups : the folders in which the kernel describes processes and control groups.
    now, cpu_seconds : the clock of the machine, and the clock of a process.

    Returns
    -------
    `busy`, core seconds of all programs and of the kernel without interrupts, up to a constant;
    `counted`, core seconds that the kernel assigned to anything; `steal`, core seconds that other
    virtual machines took; `own`, core seconds of the processes `pids` and of their children that
    have ended; `throttled`, seconds for which control groups held cores back; `seconds`, the
    monotonic time of this reading.
    """
    before = now()
    ticks, cores = _read_ticks(proc / "stat")
    seconds = (before + now()) / 2
    run_seconds = 0.0
    for pid in pids:  # The time of a process includes its children that have ended.
        run_seconds += cpu_seconds(pid)
        with suppress(OSError, ValueError):  # The process has ended.
            run_seconds += sum(map(int, stat(proc / str(pid))[13:15])) * TICK_SECONDS
    return {
        "seconds": seconds,
        "busy": None if ticks is None else cores * seconds - sum(ticks[3:]) * TICK_SECONDS,
        "counted": None if ticks is None else sum(ticks) * TICK_SECONDS,
        "steal": None if ticks is None else ticks[7] * TICK_SECONDS,
        "own": run_seconds,
        "throttled": _read_throttling(proc / "self/cgroup", groups),
    }


def _read_ticks(file: Path) -> tuple[list[int] | None, int]:
    """Return the ticks, summed over cores, or None if they cannot be read; and the number of cores.

    The ticks are `user`, `nice`, `system`, `idle`, `iowait`, `irq`, `softirq` and `steal`.
    """
    with suppress(OSError, ValueError):
        lines = file.read_text(encoding="utf-8").splitlines()
        ticks = [int(word) for word in lines[0].split()[1:9]]
        if len(ticks) == 8:
            return ticks, sum(line.startswith("cpu") for line in lines[1:])
    return None, 0


def _read_throttling(membership: Path, groups: Path) -> float | None:
    """Return the seconds for which a quota stopped the groups of this process, over all cores."""
    seconds = []
    for _, folder in control_groups("cpu", membership, groups):
        with suppress(OSError, ValueError):
            words = (folder / "cpu.stat").read_text(encoding="utf-8").split()
            counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
            if "throttled_usec" in counts:
                seconds.append(counts["throttled_usec"] / 1e6)
            elif "throttled_time" in counts:
                seconds.append(counts["throttled_time"] / 1e9)
    return sum(seconds) if seconds else None


class Load:
    """Measure the load of a machine over some stretches of time.

    Parameters
    ----------
    roots : ids of the run's processes on this machine. Their descendants belong to the run too.
        They are looked up once, at the first stretch. If `roots` is None, nothing is read.
    grows : look up descendants again at the end of each stretch, to find new processes.
    """

    def __init__(self, roots: list[int] | None, grows: bool = False):
        self._roots, self._grows, self._pids = roots, grows, []
        self._before, self._total, self._stretches = None, None, 0

    def begin(self) -> None:
        """Begin a stretch. Call this method outside the timed code."""
        if self._roots is not None:
            self._pids = self._pids or self._family()
            self._before = read(self._pids)

    def _family(self) -> list[int]:
        """Return the ids of the roots and of their descendants."""
        return sorted({process.pid for process in children.family(self._roots)})

    def end(self) -> None:
        """End a stretch."""
        if self._before is not None:
            if self._grows:
                self._pids = sorted({*self._pids, *self._family()})
            grown = difference(read(self._pids), self._before)
            for name, earlier in (self._total or {}).items():
                grown[name] = None if None in (earlier, grown[name]) else earlier + grown[name]
            self._total, self._before = grown, None
            self._stretches += 1

    @property
    def sums(self) -> dict | None:
        """The sums over all stretches, with the numbers of stretches and cores."""
        numbers = {"stretches": self._stretches, "cores": os.cpu_count()}
        return None if self._total is None else self._total | numbers


def difference(after: Mapping, before: Mapping) -> Reading:
    """Return by how much each quantity grew; None for a quantity that was not read."""
    return {
        name: None if None in (value, before[name]) else value - before[name]
        for name, value in after.items()
    }
