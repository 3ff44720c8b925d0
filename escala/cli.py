"""Helpers of every script: serve or make outputs, print progress, end with a clear message."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from escala.cache import store
from escala.cache.code import Code, project
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


def serve_or_make(step: str, **keywords) -> str:
    """Call `escala.cache.store.get_or_compute` and report if the result was in the store.

    `make` should import its libraries itself, so that a served step does not wait for them.
    """
    how = store.get_or_compute(step, **keywords)
    if how == "served":
        print(f"{step}: served from the store {store.location()}")
    return how


#: Files by their names in a rule.
Files = dict[str, Path]


@dataclass(frozen=True)
class Step:
    """What a rule makes, kept in the store.

    Attributes
    ----------
    make : makes it. `output` are the files of the rule's output by name, `given` its settings, and
        the other arguments the files of its input by name.
    code : of the settings, the code that decides it.
    inputs : of the settings and the rule's input, the files that decide it, if these are others.
    parameters : of the settings, those that decide it.
    outputs : of the settings and the rule's output, what is made, if that is more; nothing of what
        is not worth a place in the store.
    optional : of the settings, the names of outputs that may be left out.
    after : called as `make`, also when the outputs were served.
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
        if outputs := self.outputs(given, output):
            serve_or_make(
                self.make.__name__,
                code=self.code(given),
                inputs=self.inputs(given, **files) if self.inputs else _by_name(files),
                parameters=self.parameters(given),
                outputs=outputs,
                optional=self.optional(given),
                make=make,
            )
        else:
            make()
        self.after(output, given, **files)


def _by_name(files: dict[str, Path | list[Path]]) -> Files:
    """Return each file by its name; those of a list by their places, as two may have one name."""
    named = {}
    for name, of in files.items():
        listed = of if isinstance(of, list) else ()
        named |= {f"{name} {place} {path.name}": path for place, path in enumerate(listed)}
        named |= {name: of} if isinstance(of, Path) else {}
    return named


def step(code: Callable[[SimpleNamespace], Code] = lambda given: project(), **others: Any):
    """Return a decorator that makes a function a `Step`, by default one of the project's code."""
    return partial(Step, code=code, **others)


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
