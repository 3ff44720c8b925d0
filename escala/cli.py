"""Helpers of every script: serve or make outputs, print progress, end with a clear message."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from escala.cache import store
from escala.core import console, interrupts
from escala.core.console import print_any_text, say
from escala.core.errors import InputError, Unavailable


def main(command: Callable[[], int | None]) -> int:
    """Run `command` and return its exit code.

    It is one of `escala.core.console`. Ctrl-C, SIGTERM and SIGHUP are turned into `SystemExit`, so
    that `finally` clauses run and no child survives. If the reader of the output has closed it, the
    code is that of SIGPIPE, and there is no message.
    """
    interrupts.handle()
    print_any_text()
    try:
        return command() or console.DONE
    except (InputError, Unavailable) as error:
        say(error)
        return console.WRONG if isinstance(error, InputError) else console.FAILED
    except BrokenPipeError:
        # The reader of the output, such as `head`, has closed it. Python must not flush it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return console.SIGNALLED + signal.SIGPIPE
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        say(f"{error.filename or 'a file'}: {error.strerror}")
        return console.FAILED


def json_or_file(text: str) -> Any:
    """Return the value of an option: JSON, or `@` and the name of a file with JSON.

    The file is for long values: Linux limits a single argument to 128 KiB.

    Raises
    ------
    ValueError : it is not JSON.
    OSError : the file cannot be read.
    """
    return json.loads(Path(text[1:]).read_bytes() if text.startswith("@") else text)


def options(description: str, **types: Callable[[str], Any] | list) -> argparse.Namespace:
    """Return the options of a script that a rule calls, each by its name and type.

    An option whose type is in a list takes any number of values; all others are required.
    """
    parser = argparse.ArgumentParser(description=description)
    for name, form in types.items():
        list_options = (
            {"nargs": "*", "default": [], "type": form[0]} if isinstance(form, list) else None
        )
        parser.add_argument(
            f"--{name.replace('_', '-')}", **list_options or {"required": True, "type": form}
        )
    return parser.parse_args()


def serve_or_make(step: str, **keywords) -> str:
    """Call `escala.cache.store.get_or_compute` and report if the result was in the store.

    `make` should import its libraries itself, so that a served step does not wait for them.
    """
    how = store.get_or_compute(step, **keywords)
    if how == "served":
        print(f"{step}: served from the store {store.location()}")
    return how


@dataclass
class Stage:
    """The outcome of a stage of the preparation: rows in and out, and the files it wrote."""

    rows_in: int = 0
    rows_out: int = 0
    files: list[Path] = field(default_factory=list)


@contextmanager
def stage(name: str) -> Iterator[Stage]:
    """Yield a `Stage` to fill in, and print it with bytes and seconds at the end."""
    start, done = time.perf_counter(), Stage()
    yield done
    written = sum(path.stat().st_size for path in done.files)
    print(
        f"{name}: {done.rows_in} rows in, {done.rows_out} rows out, {written / 1e6:.1f} MB "
        f"written, {time.perf_counter() - start:.1f} s"
    )
