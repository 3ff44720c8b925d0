"""Exit codes of commands, and their lines on standard error.

A line is written in one call, with its newline. So the lines of several processes never mix, even
if a process is killed.
"""

from __future__ import annotations

import io
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

#: The exit codes of all commands.
DONE = 0
#: Python itself also ends with this code, after an error in the project's code.
FAILED = 1
#: `argparse` also ends with this code, after wrong options.
WRONG = 2
#: Of `escala guard`.
UNDECIDED = 3
#: EX_TEMPFAIL of sysexits.h.
NO_TIME = 75
#: The code after a signal is this number + the number of the signal, as in shells.
SIGNALLED = 128

_CTRL_C, _KILL = SIGNALLED + signal.SIGINT, SIGNALLED + signal.SIGTERM
MEANINGS = {
    str(DONE): "done",
    str(FAILED): "`escala guard`: the second commit is slower; of other commands: a run or another "
    "step failed, such as one that reads the data; a program, a "
    "package or a device is missing; or another call is at work in the same folder",
    str(WRONG): "an option, a file, a key or a target cannot be used; nothing was measured",
    str(UNDECIDED): "`escala guard` could not decide: its last lines say why",
    str(
        NO_TIME
    ): "in a job of a cluster, the next repeat would not end within the job; or the runs "
    "of `escala try` may take longer than 30 minutes, and nobody was there to be asked",
    f"{SIGNALLED} + n": f"the signal n ended it: {_CTRL_C} is Ctrl-C, {_KILL} is kill",
}


def shell_code(code: int) -> int:
    """Return the exit code that a shell gives; `subprocess` gives a negative code for a signal."""
    return SIGNALLED - code if code < 0 else code


def exit_code_lines() -> list[str]:
    """Return the exit codes with their meanings, as lines of a text."""
    return [f"  {code:9}{meaning}" for code, meaning in MEANINGS.items()]


#: Seconds between two lines of progress.
EVERY = 5.0


def escape_unprintable() -> None:
    """Let standard output print letters that its encoding lacks as escapes, without an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def say(text: object) -> None:
    """Print a line that begins with the name of the project."""
    with suppress(OSError):  # A closed terminal must not end the run.
        print(f"escala: {text}\n", end="", file=sys.stderr, flush=True)


def progress(line: str) -> Callable[..., None]:
    """Return a function that prints a line with its arguments, at most once in 5 s."""
    last = time.monotonic()

    def show(*values: object) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            print(f"{line % values}\n", end="", file=sys.stderr, flush=True)

    return show
