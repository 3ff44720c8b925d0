"""Read what the cores of a machine did: for all processes, and for those of a run.

All quantities are totals since the boot of the machine or the start of a process. Reading them
takes some hundred microseconds. Formats: man 5 proc, and the kernel documentation of
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

#: Seconds of one clock tick of the kernel.
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")

#: Quantities by name; None for one that cannot be read here.
Reading = dict[str, float | None]


def read(
    own: Iterable[int], proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> Reading:
    """Return the totals of this machine so far.

    Parameters
    ----------
    own : ids of the processes of a run. One that has ended is counted by its parent.
    proc, groups : where the kernel describes processes and control groups.

    Returns
    -------
    `busy`, core seconds of all programs and of the kernel without interrupts; `steal`, core seconds
    that other virtual machines took; `own`, those of the given processes and of their children that
    have ended; `major_faults`, their page faults that read from a disk; `throttled`, seconds for
    which control groups held cores back; `pressure`, seconds in which some process waited for a
    core; `seconds`, the monotonic time of this reading.
    """
    totals = _numbers(lambda: (proc / "stat").read_text().split("\n", 1)[0].split()[1:9])
    busy, steal = (sum(totals[:3]), totals[7]) if len(totals or ()) == 8 else (None, None)
    found = [_process(proc / str(pid) / "stat") for pid in own]
    return {
        "seconds": time.monotonic(),
        "busy": busy and busy * TICK_SECONDS,
        "steal": None if steal is None else steal * TICK_SECONDS,
        "own": sum(ticks for ticks, _ in found) * TICK_SECONDS,
        "major_faults": sum(faults for _, faults in found),
        "throttled": _throttled(proc / "self/cgroup", groups),
        "pressure": _pressure(proc / "pressure/cpu"),
    }


def _numbers(words: Callable[[], Iterable[str]]) -> list[int] | None:
    try:
        return [int(word) for word in words()]
    except (OSError, ValueError):
        return None


def _process(stat: Path) -> tuple[int, int]:
    """Return the ticks and the major faults of a process and of its children that have ended."""
    # The program's name, in brackets before the numbers, may contain spaces and brackets.
    fields = _numbers(lambda: stat.read_text().rpartition(")")[2].split()[1:15])
    return (sum(fields[10:14]), fields[8] + fields[9]) if fields else (0, 0)


def _throttled(membership: Path, groups: Path) -> float | None:
    """Return the seconds for which the groups of this process were held back, over all cores."""
    found = []
    for _, folder in control_groups("cpu", membership, groups):
        with suppress(OSError, ValueError):
            words = (folder / "cpu.stat").read_text().split()
            counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
            if "throttled_usec" in counts:
                found.append(counts["throttled_usec"] / 1e6)
            elif "throttled_time" in counts:
                found.append(counts["throttled_time"] / 1e9)
    return sum(found) if found else None


def _pressure(file: Path) -> float | None:
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            kind, *words = line.split()
            if kind == "some":
                return int(dict(word.split("=") for word in words)["total"]) / 1e6
    return None


class Load:
    """Measure the load of a machine over some stretches of time.

    Parameters
    ----------
    roots : ids of the run's processes on this machine. Their descendants belong to the run too, and
        are looked up once, at the first stretch. With None, nothing is read.
    grows : look up descendants again at the end of each stretch, to find those started during it.
    """

    def __init__(self, roots: list[int] | None, grows: bool = False):
        self._roots, self._grows, self._own = roots, grows, []
        self._before, self._total, self._stretches = None, None, 0

    def begin(self) -> None:
        """Begin a stretch. Call it outside the timed part."""
        if self._roots is not None:
            self._own = self._own or self._family()
            self._before = read(self._own)

    def _family(self) -> list[int]:
        return sorted({process.pid for process in children.family(self._roots)})

    def end(self) -> None:
        """End a stretch."""
        if self._before is not None:
            if self._grows:
                self._own = sorted({*self._own, *self._family()})
            grown = difference(read(self._own), self._before)
            self._total = total([self._total, grown]) if self._total else grown
            self._before, self._stretches = None, self._stretches + 1

    @property
    def found(self) -> dict | None:
        """Sums over all stretches, with the numbers of stretches, cores and processes."""
        if self._total is None:
            return None
        return self._total | {
            "stretches": self._stretches,
            "cores": os.cpu_count(),
            "processes": len(self._own),
        }


def difference(after: Mapping, before: Mapping) -> Reading:
    """Return by how much each quantity grew; None where it was not read."""
    return {
        name: None if None in (value, before[name]) else value - before[name]
        for name, value in after.items()
    }


def total(readings: Iterable[Mapping]) -> Reading:
    """Return the sum of each quantity; None where one of them was not read."""
    readings = list(readings)
    values = {name: [each[name] for each in readings] for name in readings[0]}
    return {name: None if None in each else sum(each) for name, each in values.items()}
