"""How every script ends: a clear message and an exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from escala.errors import InputError


def main(command: Callable[[], int | None]) -> int:
    """Run `command` and return its exit code: 0 done, 2 wrong input, 130 or 143 interrupted.

    SIGTERM is turned into `SystemExit`, so that `finally` clauses run and no child survives.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return command() or 0
    except InputError as error:
        print(f"escala: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        print(f"escala: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("escala: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
