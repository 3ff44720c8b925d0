"""Exit codes of commands, and their lines on standard error.

A line is written in one call, with its newline. So the lines of several processes never mix, even
if a process is killed.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

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
#: The variable of a call that prints its progress and its answer, but no line of Snakemake. It has
#: the descriptor to which the shell of a job copies the log: of `/dev/null`.
BRIEF, NOWHERE = "ESCALA_BRIEF", "8"
#: The descriptor, in a job of such a call, of the stderr of the call.
_CALL = 9
#: Puts the cursor of a terminal to the start of its line, and clears the line.
_CLEAR = "\r\x1b[K"

_call: list[TextIO] = []


def escape_unprintable() -> None:
    """Let standard output print letters that its encoding lacks as escapes, without an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def join_call() -> None:
    """Print further lines of this job of a call in the log, and on the stderr of the call."""
    # Children of the job do not get the descriptor.
    if os.environ.pop(BRIEF, None):
        _call.append(os.fdopen(_CALL, "w", encoding="utf-8", errors="backslashreplace"))


def leave_call() -> None:
    """Print further lines of this job in the log only."""
    _call.clear()


def say(text: object) -> None:
    """Print a line that begins with the name of the project."""
    for stream in (sys.stderr, *_call):
        with suppress(OSError):  # A closed terminal must not end the run.
            clear = _CLEAR if stream.isatty() else ""
            print(f"{clear}escala: {text}\n", end="", file=stream, flush=True)


def show(line: str, is_stage: bool = True) -> None:
    """Print what runs now, or nothing. In a brief call on a terminal, it replaces what was shown.

    Parameters
    ----------
    is_stage : whether a stage or a run begins. Other lines appear on terminals and in logs only.
    """
    is_brief = BRIEF in os.environ or _call
    for stream in (sys.stderr, *_call):
        with suppress(OSError):
            if is_brief and stream.isatty():
                width = os.get_terminal_size(stream.fileno()).columns or 80
                print(f"{_CLEAR}{line[: width - 1]}", end="", file=stream, flush=True)
            elif line and (is_stage or stream is sys.stderr):
                print(f"{line}\n", end="", file=stream, flush=True)


def progress(line: str) -> Callable[..., None]:
    """Return a function that prints a line with its arguments, at most once in 5 s."""
    last = time.monotonic()

    def tell(*values: object) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            show(line % values, is_stage=False)

    return tell
