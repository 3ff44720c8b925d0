"""End this process, and those it started, in order on Ctrl-C, SIGTERM and SIGHUP."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType

import psutil

from escala.core import children, console
from escala.core.console import say

#: The signals of Ctrl-C, of `kill` and `timeout`, and of a terminal that is closed.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds between SIGTERM and SIGKILL.
GRACE_SECONDS = 15.0

_received: list[int] = []


def handle(before: Callable[[], str] = str) -> None:
    """Raise `SystemExit` on the first of `SIGNALS`, with a message, so that `finally` clauses run.

    The exit code is 128 plus the signal's number. Later signals are ignored, so that nothing
    interrupts the cleaning up. A signal that was ignored when this process started stays ignored:
    `nohup` ignores SIGHUP.

    Parameters
    ----------
    before : called before `SystemExit` is raised; returns the end of the message. Exceptions in it
        are ignored.
    """

    def exit_once(number: int, frame: FrameType | None) -> None:
        if _received:
            return
        _received.append(number)
        try:
            console.leave_call()  # It prints a message, too.
            end = before()
            say(f"interrupted{end and ': '}{end}")
        finally:  # This is raised even if the terminal is closed and nothing can be written.
            sys.exit(128 + number)

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, exit_once)


def was_signalled() -> bool:
    """Return whether a signal asked this process to end."""
    return bool(_received)


def end_if_received() -> None:
    """Raise `SystemExit` if a signal asked this process to end, however long ago.

    A library may catch and drop the `SystemExit` that a signal raised, for example while it is
    imported. So call this function where the process waits, and before it writes a result.
    """
    if _received:
        sys.exit(128 + _received[0])


def end_processes(pids: Iterable[int]) -> None:
    """Send SIGTERM to processes and their descendants, and SIGKILL after `GRACE_SECONDS`.

    It does not wait: a thread sends the second signal.

    Parameters
    ----------
    pids : ids of processes; those that have ended are skipped.
    """
    family = children.family(pids)

    def send(act: Callable[[psutil.Process], None]) -> None:
        for process in family:
            with suppress(psutil.NoSuchProcess):
                act(process)

    send(psutil.Process.terminate)
    killer = threading.Timer(GRACE_SECONDS, send, [psutil.Process.kill])
    killer.daemon = True
    killer.start()
