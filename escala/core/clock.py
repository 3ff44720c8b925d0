"""Tell when a process began, by a clock that is not affected by corrections of the time of day."""

from __future__ import annotations

import os
import time
from pathlib import Path


def started(process: int | str = "self") -> float:
    """Return when a process began, in seconds of `CLOCK_BOOTTIME` (man 5 proc).

    The resolution is a hundredth of a second.

    Raises
    ------
    FileNotFoundError, ProcessLookupError : it has ended.
    """
    return int(_stat(process)[19]) / os.sysconf("SC_CLK_TCK")


def age(process: int | str = "self") -> float:
    """Return the seconds since a process began; see `started`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started(process)


def runs(pid: int, began: float) -> bool:
    """Return whether the process with this id and this start time still runs and is no zombie.

    The start time is needed because a later process may have got the same id.
    """
    try:
        return _stat(pid)[0] != "Z" and started(pid) == began
    except (FileNotFoundError, ProcessLookupError):
        return False


def _stat(process: int | str) -> list[str]:
    # The program's name, in brackets before the state, may contain spaces and brackets.
    return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
