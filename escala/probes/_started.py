"""The processes of a program that a rank started, as a process outside the rank sees them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from escala.core.variables import MARKS


class Started:
    """The processes of a rank's program.

    They have the variable of the marks, or a process of the program started them. What else the
    rank starts, such as a neighbour that keeps its cores busy, does not count.
    """

    def __init__(self, rank: psutil.Process):
        self._rank = rank
        self._known: set[int] = set()

    def processes(self) -> list[psutil.Process]:
        """Return those that run now.

        Raises
        ------
        psutil.NoSuchProcess : the rank has ended.
        """
        found = []
        for process in self._rank.children(recursive=True):
            with suppress(psutil.Error, OSError):
                if process.pid in self._known or self._is_of_program(process):
                    self._known.add(process.pid)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found

    def _is_of_program(self, process: psutil.Process) -> bool:
        variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        named = any(each.startswith(f"{MARKS}=".encode()) for each in variables)
        return named or process.ppid() in self._known


def cpu_seconds(processes: list[psutil.Process], ended: bool) -> float:
    """Return the processor time of some processes.

    Parameters
    ----------
    ended : add that of the processes that they started and that have ended.
    """
    names = ["user", "system"] + ["children_user", "children_system"] * ended
    times = (process.cpu_times() for process in processes)
    return sum(getattr(each, name) for each in times for name in names)
