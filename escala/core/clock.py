"""Read clocks that do not change when the time of day is corrected."""

from __future__ import annotations

import os
import time
from pathlib import Path


def started(process: int | str = "self") -> float:
    """Return when a process began, in seconds of `CLOCK_BOOTTIME`, to a hundredth (man 5 proc).

    Raises
    ------
    FileNotFoundError, ProcessLookupError : it has ended.
    """
    return int(_stat(process)[19]) / os.sysconf("SC_CLK_TCK")


def age(process: int | str = "self") -> float:
    """Return the seconds since a process began; see `started`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started(process)


def runs(pid: int, began: float) -> bool:
    """Return whether a process that began then runs, and is no zombie.

    Another process may have its number by now.
    """
    try:
        return _stat(pid)[0] != "Z" and started(pid) == began
    except (FileNotFoundError, ProcessLookupError):
        return False


def _stat(process: int | str) -> list[str]:
    # The name before the state, in brackets, may hold anything.
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
