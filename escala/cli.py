"""Helpers of every script: serve or make outputs, print progress, end with a clear message."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from escala.cache import store
from escala.cache.code import Code
from escala.core import console, interrupts
from escala.core.console import escape_unprintable, say
from escala.core.errors import InputError, Unavailable


def main(command: Callable[[], int | None]) -> int:
    """Run `command` and return its exit code.

    `escala.core.console` lists the codes. Ctrl-C, SIGTERM and SIGHUP are turned into `SystemExit`,
    so that `finally` clauses run and no child survives. If the reader of the output has closed the
    output, the code is 128 + SIGPIPE, and no message is printed.
    """
    interrupts.handle()
    escape_unprintable()
    try:
        return command() or console.DONE
    except (InputError, Unavailable) as error:
        say(error)
        return console.WRONG if isinstance(error, InputError) else console.FAILED
    except BrokenPipeError:
        # The reader of the output, such as `head`, has closed it. Python must not flush at exit.
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
    argparse.ArgumentTypeError : the text is not JSON, or the file cannot be read.
    """
    try:
        return json.loads(Path(text[1:]).read_bytes() if text.startswith("@") else text)
    except (ValueError, OSError) as error:
        raise argparse.ArgumentTypeError(f"{text[:80]} is not JSON: {error}") from error


#: The files of a rule, by the names that the rule gives them.
Files = dict[str, Path]


@dataclass(frozen=True)
class Step:
    """A step of the workflow: it makes the outputs of a rule, or takes them from the store.

    A step gets `output`, the files of the rule's output by name; `given`, the settings of the
    rule; and the files of the rule's input, as arguments of their names.

    Attributes
    ----------
    make : makes the outputs.
    code : takes the settings; returns the code that decides the outputs.
    inputs : takes the settings and the rule's input; returns the files that decide the outputs.
        Default: the files of the rule's input.
    parameters : takes the settings; returns the values that decide the outputs.
    outputs : takes the settings and the rule's output; returns the files to store. They may be more
        than the rule's output. If there are none, the step does not use the store.
    optional : takes the settings; returns the names of outputs that the step may leave out.
    after : called like `make`, after the outputs were made or served.
    """

    make: Callable[..., None]
    code: Callable[[SimpleNamespace], Code]
    inputs: Callable[..., Files] | None = None
    parameters: Callable[[SimpleNamespace], dict] = vars
    outputs: Callable[[SimpleNamespace, Files], Files] = lambda given, output: output
    optional: Callable[[SimpleNamespace], Collection[str]] = lambda given: ()
    after: Callable[..., None] = lambda output, given, **files: None

    def __call__(self, output: Files, given: SimpleNamespace, **files: Path | list[Path]) -> None:
        make = partial(self.make, output, given, **files)
        name, outputs = self.make.__name__, self.outputs(given, output)
        how = outputs and store.get_or_compute(
            name,
            code=self.code(given),
            inputs=self.inputs(given, **files) if self.inputs else _by_name(files),
            parameters=self.parameters(given),
            outputs=outputs,
            optional=self.optional(given),
            make=make,
        )
        if not outputs:
            make()
        elif how == "served":
            print(f"{name}: served from the store {store.location()}")
        self.after(output, given, **files)


def _by_name(files: dict[str, Path | list[Path]]) -> Files:
    """Return files by name; a file of a list also by its place, as two may have the same name."""
    named = {}
    for name, of in files.items():
        listed = of if isinstance(of, list) else ()
        named |= {f"{name} {place} {path.name}": path for place, path in enumerate(listed)}
        named |= {name: of} if isinstance(of, Path) else {}
    return named


def step(code: Callable[[SimpleNamespace], Code], **others: Any) -> Callable[[Callable], Step]:
    """Return a decorator that makes a function a `Step`."""
    return partial(Step, code=code, **others)


def print_stage(
    name: str, began: float, rows_in: int, rows_out: int, files: Iterable[Path]
) -> None:
    """Print what a stage of the preparation did.

    Parameters
    ----------
    began : `time.perf_counter()` at its begin.
    files : the files that the stage wrote.
    """
    written = sum(path.stat().st_size for path in files)
    print(
        f"{name}: {rows_in} rows in, {rows_out} rows out, {written / 1e6:.1f} MB "
        f"written, {time.perf_counter() - began:.1f} s"
    )
