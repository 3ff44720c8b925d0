"""Compile TensorFlow operations in C++, and load them.

A package has them in its `operations.cc`. This file may include others of the package, and headers
of the package `dense_operations`. The first process of an environment that needs them compiles them
into the environment's folder. They must run on every x86-64 processor, because the nodes of a
cluster differ.
"""

from __future__ import annotations

import fcntl
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
from escala.core.children import completed
from escala.core.errors import Unavailable
from escala.core.files import atomic

log = logging.getLogger("escala")

SOURCE = "operations.cc"
#: The package whose headers every `operations.cc` may include.
HEADERS = "escala.engines.tensorflow.dense_operations"
#: Without `-fno-math-errno`, no loop over square roots is compiled to vector instructions. Without
#: `-Wno-psabi`, the compiler notes that functions with vector arguments have no stable interface.
OPTIONS = ("-O3", "-fno-math-errno", "-Wno-psabi", "-shared", "-fPIC")


@cache
def operations(package: str, instead: str) -> ModuleType:
    """Return the operations of a package as functions of a module, or raise `Unavailable`.

    `instead` is the knob that needs no such operations, for the message.
    """
    with resources.as_file(resources.files(package)) as folder:
        path = library(folder / SOURCE, libraries(), instead)
    try:
        return tf.load_op_library(str(path))
    except (tf.errors.NotFoundError, RuntimeError) as error:
        raise Unavailable(f"{path}: TensorFlow cannot load it: {error}") from error


def libraries() -> Path:
    """Return the folder of this environment that holds the libraries."""
    return Path(sys.prefix, "share", "escala")


def library(source: Path, folder: Path, instead: str, compiler: str = packages.COMPILER) -> Path:
    """Return the shared library made of a C++ file, which is compiled if it is not in a folder.

    The name of the library holds a digest of the C++ in its folder, of the headers that it may
    include, of the options and of TensorFlow's version, and one of the compiler's version. Where
    there is no compiler, the last one compiled serves. Several processes may call this at the same
    time; one of them compiles. A library that cannot be compiled or written is `Unavailable`.
    """
    options = [*OPTIONS, *tf.sysconfig.get_compile_flags()]
    links = tf.sysconfig.get_link_flags()
    with resources.as_file(resources.files(HEADERS)) as headers:
        files = {*source.parent.glob("*.cc"), *source.parent.glob("*.h"), *headers.glob("*.h")}
        content = [file.read_text(encoding="utf-8") for file in sorted(files)]
        determined = [content, options, links, tf.__version__]
    name = f"{source.parent.name}-{_digest(determined)}"
    version = packages.compiler(compiler)
    path = folder / f"{name}-{_digest(version)}.so"
    if version is None:
        made = sorted(folder.glob(f"{name}-*.so"), key=lambda each: each.stat().st_mtime)
        path = made[-1] if made else path
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                log.info("compiling %s", source)
                with atomic(path) as temporary:
                    whole = [compiler, *options, f"-I{headers}", str(source)]
                    _run([*whole, "-o", str(temporary), *links], instead)
    except OSError as error:
        raise Unavailable(f"{source.name} cannot be compiled into {folder}: {error}") from error
    return path


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _run(command: list[str], instead: str) -> None:
    """Run a compiler; `Unavailable` if it is missing, or ends with an error."""
    try:
        done = completed(command)
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
