"""What processes used of the cores, and how often the kernel gave them a page of memory.

The first access to a page of memory that the kernel gave to a process is a *minor fault*: the
kernel clears the page, in time that counts as its own (man 2 getrusage, man 5 proc).
"""

from __future__ import annotations

import os
import resource
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


def of_tree(pid: int, proc: Path = Path("/proc")) -> Usage:
    """Return the totals of a process and its descendants, also of those that have ended.

    Times are in whole ticks of the kernel. A process of which nothing can be read counts nothing.
    """
    folder = proc / str(pid)
    try:
        # The program's name, in brackets before the numbers, may contain spaces and brackets.
        fields = [
            int(word)
            for word in (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1:]
        ]
        children = [
            int(child)
            for thread in (folder / "task").iterdir()
            for child in (thread / "children").read_text(encoding="utf-8").split()
        ]
    except (OSError, ValueError):
        return Usage(0, 0.0, 0.0)
    own = Usage(
        fields[6] + fields[7],
        (fields[10] + fields[12]) * _TICK_SECONDS,
        (fields[11] + fields[13]) * _TICK_SECONDS,
    )
    return Usage(*map(sum, zip(own, *(of_tree(child, proc) for child in children), strict=True)))
