"""Read the start and the usage of processes from the kernel; test whether memory can be read.

The first access to a page of memory that the kernel gave to a process is a *minor fault*: the
kernel clears the page, and this time counts as system time (man 2 getrusage, man 5 proc).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from collections.abc import Iterable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

#: Seconds of one clock tick of the kernel.
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def start_time(process: int | str = "self") -> float:
    """Return when a process began, in seconds of `CLOCK_BOOTTIME` (man 5 proc).

    The resolution is a hundredth of a second.

    Raises
    ------
    FileNotFoundError, ProcessLookupError : the process has ended.
    """
    return int(stat(Path("/proc", str(process)))[19]) / os.sysconf("SC_CLK_TCK")


def age() -> float:
    """Return the seconds since this process began; see `start_time`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_time("self")


def is_running(pid: int, began: float) -> bool:
    """Return whether a process, known by its id and start time, still runs and is no zombie.

    The start time is needed because a later process may get the same id.
    """
    try:
        return stat(Path("/proc", str(pid)))[0] != "Z" and start_time(pid) == began
    except (FileNotFoundError, ProcessLookupError):
        return False


def stat(folder: Path) -> list[str]:
    """Return the fields in `stat` of a process or a thread, from the state on (man 5 proc).

    The state, field 3 in the manual, has the index 0.

    Raises
    ------
    FileNotFoundError, ProcessLookupError : the process has ended.
    """
    text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    # The program's name, in brackets before the state, may contain spaces and brackets.
    return text.rpartition(")")[2].split()


class Usage(NamedTuple):
    """Totals of processes: minor faults, and core seconds in user code and in the kernel."""

    minor_faults: int
    user_seconds: float
    system_seconds: float

    def since(self, earlier: Usage) -> Usage:
        """Return by how much the totals grew."""
        return Usage(*(now - before for now, before in zip(self, earlier, strict=True)))


def usage_of_self() -> Usage:
    """Return the totals of this process with all of its threads. The call takes a microsecond."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(used.ru_minflt, used.ru_utime, used.ru_stime)


class Process(NamedTuple):
    """Totals of a process, of its children that ended, and the seconds of its first thread."""

    pid: int
    itself: Usage
    first_thread: float
    ended: Usage


def total_usage(processes: Iterable[Process]) -> Usage:
    """Return the sum of the totals of processes and of their ended children."""
    used = [usage for process in processes for usage in (process.itself, process.ended)]
    return Usage(*map(sum, zip(*used, strict=True))) if used else Usage(0, 0.0, 0.0)


def family_usage(pid: int, proc: Path = Path("/proc")) -> list[Process]:
    """Return a process and its descendants, without those that cannot be read.

    Times are in whole ticks of the kernel.
    """
    folder = proc / str(pid)
    try:
        # Without the state, so field 10 of the manual has the place 6.
        fields, first = (
            [*map(int, stat(of)[1:])] for of in (folder, folder / "task" / folder.name)
        )
        children = [
            int(child)
            for thread in (folder / "task").iterdir()
            for child in (thread / "children").read_text(encoding="utf-8").split()
        ]
    except (OSError, ValueError):
        return []
    # The indices of minflt and utime, and of cminflt and cutime; stime and cstime follow.
    itself, ended = (
        Usage(fields[faults], fields[user] * TICK_SECONDS, fields[user + 1] * TICK_SECONDS)
        for faults, user in ((6, 10), (7, 12))
    )
    process = Process(pid, itself, (first[10] + first[11]) * TICK_SECONDS, ended)
    return [process, *chain.from_iterable(family_usage(child, proc) for child in children)]


_LIBC = ctypes.CDLL(None, use_errno=True)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@cache
def can_read_child() -> bool:
    """Return whether this process can read the memory of a child. Start a child for the test."""
    mine, other = ctypes.create_string_buffer(8), ctypes.create_string_buffer(b"written", 8)
    vectors = [_Vector(ctypes.addressof(buffer), len(buffer)) for buffer in (mine, other)]
    # After a fork the child has equal content at the same address.
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        local, remote = map(ctypes.byref, vectors)
        read = _LIBC.process_vm_readv(child, local, 1, remote, 1, 0)
        return read == len(mine) and mine.raw == other.raw
    except AttributeError:  # A C library without the call.
        return False
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
