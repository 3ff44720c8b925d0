"""Layers, updates and exchanges that are faster than Keras's; only rounding differs.

Training uses `dense`. Models and optimizers use `lookup` and `rmsprop`. This module compiles and
loads operations in C++. Each `.cc` file in this folder is a library, which may include the headers
in the folder. The first process that needs a library compiles it into a folder of the environment.
A library must run on every x86-64 processor, because the nodes of a cluster differ.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from functools import cache
from importlib import resources
from pathlib import Path
from types import ModuleType

import tensorflow as tf

from escala.core import packages
from escala.core.children import capture
from escala.core.errors import Unavailable
from escala.core.files import atomic, take_turns

log = logging.getLogger("escala")

#: `-fno-math-errno` lets the compiler use vector instructions in loops over square roots.
#: `-Wno-psabi` suppresses a note that functions with vector arguments have no stable interface.
OPTIONS = ("-O3", "-fno-math-errno", "-Wno-psabi", "-shared", "-fPIC")
#: The folder for libraries in this environment.
LIBRARIES = Path(sys.prefix, "share", "escala")


@cache
def load_operations(name: str, instead: str) -> ModuleType:
    """Return the operations of the file `NAME.cc` as functions of a module.

    `instead` is a knob's value that needs no operations in C++, for the message of `Unavailable`.
    """
    with resources.as_file(resources.files(__package__)) as folder:
        path = compile_library(folder / f"{name}.cc", instead)
    try:
        return tf.load_op_library(str(path))
    except (tf.errors.NotFoundError, RuntimeError) as error:
        raise Unavailable(f"{path}: TensorFlow cannot load it: {error}") from error


def compile_library(
    source: Path,
    instead: str,
    folder: Path = LIBRARIES,
    compiler: str = packages.COMPILER,
) -> Path:
    """Return the shared library of a C++ file; compile the file if the library is not in `folder`.

    The name of a library has two digests. The first digest is of the file, of the headers in its
    folder, of the options and of TensorFlow's version. The second digest is of the compiler's
    version. Without compiler, the newest library with the first digest serves. Several processes
    may call this at the same time, and only one process compiles. A library that cannot be compiled
    or written is `Unavailable`.
    """
    options = [*OPTIONS, *tf.sysconfig.get_compile_flags()]
    links = tf.sysconfig.get_link_flags()
    files = [source, *sorted(source.parent.glob("*.h"))]
    content = [file.read_text(encoding="utf-8") for file in files]
    name = f"{source.stem}-{_digest([content, options, links, tf.__version__])}"
    version = packages.compiler(compiler)
    path = folder / f"{name}-{_digest(version)}.so"
    if version is None:
        made = sorted(folder.glob(f"{name}-*.so"), key=lambda file: file.stat().st_mtime)
        path = made[-1] if made else path
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with take_turns(folder / "lock", "waiting: another process compiles operations"):
            if not path.is_file():
                log.info("compiling %s", source)
                with atomic(path) as temporary:
                    whole = [compiler, *options, str(source), "-o", str(temporary), *links]
                    _run(whole, instead)
    except OSError as error:
        raise Unavailable(f"{source.name} cannot be compiled into {folder}: {error}") from error
    return path


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _run(command: list[str], instead: str) -> None:
    """Run a compiler. A missing compiler, or an error of the compiler, is `Unavailable`."""
    try:
        done = capture(command)
    except FileNotFoundError:
        raise Unavailable(
            f"the compiler {command[0]} is not on the PATH; install it, or use `{instead}`"
        ) from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        first = (errors or done.stderr.splitlines() or ["no message"])[0]
        raise Unavailable(
            f"{command[0]} ended with {done.returncode}: {first}; without it, use `{instead}`"
        )
