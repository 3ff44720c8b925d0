"""Compute by a framework, here or in a process whose Python has it.

The process is `python -m escala.engines.elsewhere MODULE ENGINE`; its input is one end of a socket.
"""

from __future__ import annotations

import io
import json
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from escala.core import children, errors
from escala.core.errors import Unavailable
from escala.engines import environments

Arrays = dict[str, np.ndarray]
Inputs = tuple[np.ndarray, ...]


def make_caller(
    module: str, engine: str, described: dict, arrays: Arrays
) -> Callable[[int, Inputs], np.ndarray]:
    """Return a function that calls one of the functions of arrays that a module makes.

    It gets the number of this function, and its arrays.

    Parameters
    ----------
    module : its `make_functions` gets the other arguments, and returns the functions.
    engine : has the framework.
    described, arrays : what the functions are made of.

    Raises
    ------
    ValueError : the functions cannot be made of these.
    Unavailable : the environment of the framework could not be made.
    """
    python = environments.provide(engine)
    if python == sys.executable:
        functions = import_module(module).make_functions(engine, described, arrays)
        return lambda number, inputs: functions[number](inputs)
    return _Elsewhere(python, (module, engine), described, arrays).call


class _Elsewhere:
    """The functions of a module in a process of another Python, which ends with this object."""

    def __init__(self, python: str, words: Sequence[str], described: dict, arrays: Arrays):
        self._process, other = Pipe()
        with other:
            child = children.start(
                [python, "-P", "-m", __name__, *words],
                environments.variables(python, os.environ),
                None,
                given=other.fileno(),
            )
        weakref.finalize(self, _end, self._process, child)
        self._python, self._words, self._child = python, words, child
        self._answer(json.dumps(described).encode(), _pack(arrays))

    def call(self, number: int, inputs: Inputs) -> np.ndarray:
        """Return what one of the functions computes."""
        given = {f"input_{place}": array for place, array in enumerate(inputs)}
        return self._answer(_pack({"function": np.array(number)} | given))["arr_0"]

    def _answer(self, *messages: bytes) -> Arrays:
        """Return the arrays that the process sends; a ValueError with its error if it has one.

        If it has ended, as one that cannot be started or has no memory, that is `Unavailable`.
        """
        try:
            for message in messages:
                self._process.send_bytes(message)
            error = self._process.recv_bytes().decode()
            result = self._process.recv_bytes()
        except (EOFError, OSError):
            self._process.close()
            code = self._child.wait()
            raise Unavailable(
                f"{self._python}, which computes for {self._words[0]}, ended with exit code {code}"
            ) from None
        if error:
            raise ValueError(error)
        return _unpack(result)


def _end(connection: Connection, child: Any) -> None:
    connection.close()
    child.wait()


def _serve(module: str, engine: str, connection: Connection) -> None:
    """Make the functions of a module, and compute what the other side asks for until it ends."""

    def answer(make: Callable[[], Any]) -> Any:
        """Send the error of a function, or its array if it returns one."""
        error, made = "", None
        try:
            made = make()
        # The code of a user's workload may raise anything.
        except (Exception, SystemExit) as raised:
            error = errors.text_of(raised)
        connection.send_bytes(error.encode())
        connection.send_bytes(_pack({"arr_0": made} if isinstance(made, np.ndarray) else {}))
        return made

    described = json.loads(connection.recv_bytes())
    arrays = _unpack(connection.recv_bytes())
    functions = answer(lambda: import_module(module).make_functions(engine, described, arrays))
    while functions:
        number, *inputs = _unpack(connection.recv_bytes()).values()
        answer(partial(functions[int(number)], tuple(inputs)))


def _pack(arrays: Arrays) -> bytes:
    """Return arrays by name as bytes, which hold no code."""
    np.savez(file := io.BytesIO(), **arrays)
    return file.getvalue()


def _unpack(content: bytes) -> Arrays:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return dict(stored)


if __name__ == "__main__":
    with suppress(EOFError):
        _serve(*sys.argv[1:], Connection(os.dup(sys.stdin.fileno())))
