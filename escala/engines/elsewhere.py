"""Compute by a framework, in this process or in a process whose Python has the framework.

The other process is `python -m escala.engines.elsewhere MODULE ENGINE`, and its standard input is
one end of a socket. MODULE has the function `make_functions`. This function takes the name of the
engine, a description in JSON, such as settings, and arrays by name, such as weights. It returns
functions from a tuple of arrays to an array.
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
    module: str, engine: str, description: dict, arrays: Arrays
) -> Callable[[int, Inputs], np.ndarray]:
    """Return a function of a number and inputs, which calls a module's function of that number.

    Parameters
    ----------
    module : the module whose `make_functions` gets the other arguments.

    Raises
    ------
    ValueError : the module cannot make functions from these arguments.
    Unavailable : the environment of the framework could not be made.
    """
    python = environments.provide(engine)
    if python == sys.executable:
        functions = import_module(module).make_functions(engine, description, arrays)
        return lambda number, inputs: functions[number](inputs)
    return _Elsewhere(python, (module, engine), description, arrays).call


class _Elsewhere:
    """The functions of a module in a process of another Python, which ends with this object."""

    def __init__(self, python: str, words: Sequence[str], description: dict, arrays: Arrays):
        self._connection, other_end = Pipe()
        with other_end:
            child = children.start(
                [python, "-P", "-m", __name__, *words],
                environments.variables(python, os.environ),
                None,
                stdin=other_end.fileno(),
            )
        weakref.finalize(self, _end, self._connection, child)
        self._python, self._words, self._child = python, words, child
        self._ask(json.dumps(description).encode(), _pack(arrays))

    def call(self, number: int, inputs: Inputs) -> np.ndarray:
        """Return the result of the function of this number."""
        arrays = {f"input_{place}": array for place, array in enumerate(inputs)}
        return self._ask(_pack({"function": np.array(number)} | arrays))["arr_0"]

    def _ask(self, *messages: bytes) -> Arrays:
        """Return the arrays that the process answers; an error in the process is a ValueError.

        A process that has ended is `Unavailable`: it could not be started, or memory ran out.
        """
        try:
            for message in messages:
                self._connection.send_bytes(message)
            error = self._connection.recv_bytes().decode()
            result = self._connection.recv_bytes()
        except (EOFError, OSError):
            self._connection.close()
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
    """Make the functions of a module, and answer requests of the other side until its end."""

    def answer(compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`. Send its error, and the result if it is an array."""
        error, result = "", None
        try:
            result = compute()
        # The code of a user's workload may raise any error.
        except (Exception, SystemExit) as raised:
            error = errors.text_of(raised)
        connection.send_bytes(error.encode())
        connection.send_bytes(_pack({"arr_0": result} if isinstance(result, np.ndarray) else {}))
        return result

    description = json.loads(connection.recv_bytes())
    arrays = _unpack(connection.recv_bytes())
    functions = answer(lambda: import_module(module).make_functions(engine, description, arrays))
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
