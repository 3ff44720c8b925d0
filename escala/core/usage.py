"""What processes used of the cores, and how often the kernel gave them a page of memory.

The first access to a page of memory that the kernel gave to a process is a *minor fault*: the
kernel clears the page, in time that counts as its own (man 2 getrusage, man 5 proc).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Totals of processes: page faults that read nothing, and core seconds by whom they served."""

    minor_faults: int
    user_seconds: float
    system_seconds: float

    def since(self, earlier: Usage) -> Usage:
        """Return by how much the totals grew."""
        return Usage(*(now - before for now, before in zip(self, earlier, strict=True)))


def of_self() -> Usage:
    """Return the totals of this process, with all of its threads; it takes a microsecond."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(used.ru_minflt, used.ru_utime, used.ru_stime)


class Process(NamedTuple):
    """A process: what it used itself, its first thread in seconds, and its children that ended."""

    pid: int
    itself: Usage
    first_thread: float
    ended: Usage


def total(processes: Iterable[Process]) -> Usage:
    """Return the totals of what processes and their ended children used."""
    used = [each for process in processes for each in (process.itself, process.ended)]
    return Usage(*map(sum, zip(*used, strict=True))) if used else Usage(0, 0.0, 0.0)


def tree(pid: int, proc: Path = Path("/proc")) -> list[Process]:
    """Return a process and its descendants, as far as they can be read.

    Times are in whole ticks of the kernel.
    """
    folder = proc / str(pid)
    try:
        fields, first = _fields(folder), _fields(folder / "task" / folder.name)
        children = [
            int(child)
            for thread in (folder / "task").iterdir()
            for child in (thread / "children").read_text(encoding="utf-8").split()
        ]
    except (OSError, ValueError):
        return []
    itself, ended = (
        Usage(fields[faults], fields[cores] * _TICK_SECONDS, fields[cores + 1] * _TICK_SECONDS)
        for faults, cores in ((6, 10), (7, 12))
    )
    found = [Process(pid, itself, (first[10] + first[11]) * _TICK_SECONDS, ended)]
    return found + [each for child in children for each in tree(child, proc)]


def _fields(folder: Path) -> list[int]:
    """Return the numbers that the kernel tells of a process or a thread, from its parent on."""
    # The program's name, in brackets before the numbers, may contain spaces and brackets.
    text = (folder / "stat").read_text(encoding="utf-8")
    return [int(word) for word in text.rpartition(")")[2].split()[1:]]
