"""Compile the TensorFlow operations of `operations.cc`, and load them.

The first process of an environment that needs them compiles them into the environment's folder.
They run on every x86-64 processor: each operation chooses its instructions when it is created.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import subprocess
import sys
from functools import cache
from importlib import resources
from pathlib import Path
from types import ModuleType

import tensorflow as tf

from escala.core.errors import Unavailable
from escala.core.files import atomic

log = logging.getLogger("escala")

COMPILER = "g++"
#: Without `-fno-math-errno`, no loop over square roots is compiled to vector instructions. Without
#: `-Wno-psabi`, the compiler notes that functions with vector arguments have no stable interface.
OPTIONS = ("-O3", "-fno-math-errno", "-Wno-psabi", "-shared", "-fPIC")


@cache
def operations() -> ModuleType:
    """Return the operations as functions of a module.

    Raises
    ------
    Unavailable : they cannot be compiled or loaded here.
    """
    # The name of the package as a string makes its C++ a part of a measurement's key.
    with resources.as_file(
        resources.files("escala.workloads.dense_kernels") / "operations.cc"
    ) as source:
        path = library(source, Path(sys.prefix, "share", "escala"))
    try:
        return tf.load_op_library(str(path))
    except (tf.errors.NotFoundError, RuntimeError) as error:
        raise Unavailable(f"{path}: TensorFlow cannot load it: {error}") from error


def library(source: Path, folder: Path, compiler: str = COMPILER) -> Path:
    """Return the shared library made of a C++ file, which is compiled if it is not in a folder.

    The name of the library holds a digest of the file, the options and TensorFlow's version.
    Several processes may call this at the same time; one of them compiles.

    Raises
    ------
    Unavailable : the library cannot be compiled or written.
    """
    options = [*OPTIONS, *tf.sysconfig.get_compile_flags()]
    links = tf.sysconfig.get_link_flags()
    determined = [source.read_text(), options, links, tf.__version__]
    digest = hashlib.sha256(json.dumps(determined).encode()).hexdigest()
    path = folder / f"{source.stem}-{digest[:16]}.so"
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                log.info("compiling %s", source.name)
                with atomic(path) as temporary:
                    _run([compiler, *options, str(source), "-o", str(temporary), *links])
    except OSError as error:
        raise Unavailable(f"{source.name} cannot be compiled into {folder}: {error}") from error
    return path


def _run(command: list[str]) -> None:
    """Run a compiler.

    Raises
    ------
    Unavailable : it is missing, or ends with an error.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise Unavailable(
            f"the compiler {command[0]} is not on the PATH; install it, or use `optimizer: fused`"
        ) from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        first = (errors or done.stderr.splitlines() or ["no message"])[0]
        raise Unavailable(f"{command[0]} ended with {done.returncode}: {first}")
