"""Lines on standard error: on what happens, and now and then on what takes long.

Each is written with its end at once: lines of several processes stay apart, also if one is killed.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from contextlib import suppress

#: Seconds between two lines.
EVERY = 5.0


def print_any_text() -> None:
    """Print letters that the encoding of the locale lacks as escapes, in place of an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def say(text: object) -> None:
    """Print a line of the project's own."""
    with suppress(OSError):  # A closed terminal must not end the run.
        print(f"escala: {text}\n", end="", file=sys.stderr, flush=True)


def progress(line: str) -> Callable[..., None]:
    """Return a function that prints a line with its arguments, every 5 s at most."""
    last = time.monotonic()

    def say(*values: object) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            print(f"{line % values}\n", end="", file=sys.stderr, flush=True)

    return say
