"""A line now and then about what takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

#: Seconds between two lines.
EVERY = 5.0


def progress(line: str) -> Callable[..., None]:
    """Return a function that prints a line with its arguments, every 5 s at most."""
    last = time.monotonic()

    def say(*values: object) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            print(line % values, file=sys.stderr, flush=True)

    return say
