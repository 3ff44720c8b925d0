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
    # The name before it, in brackets, may hold anything.
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def age(process: int | str = "self") -> float:
    """Return the seconds since a process began.

    Raises
    ------
    FileNotFoundError, ProcessLookupError : it has ended.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started(process)
