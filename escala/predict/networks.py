"""Restore a trained network, here or in a process whose Python has its framework.

The process is `python -m escala.predict.networks ENGINE`; its input is one end of a socket.
"""

from __future__ import annotations

import io
import json
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from escala.core import children, user_code
from escala.core.engines import DEFAULT
from escala.core.errors import Unavailable
from escala.data.base import Spec, output_shape, specs
from escala.engines import environments, interpreters
from escala.workloads import WORKLOADS, workload
from escala.workloads.models import row_blocks, rows_at_once

Inputs = tuple[np.ndarray, ...]
Predict = Callable[[Inputs], np.ndarray]


def restored(described: dict, arrays: dict[str, np.ndarray]) -> list[Predict]:
    """Return the functions from inputs to the outputs of a network, and to its predictions.

    Parameters
    ----------
    described : the content of its `model.json`.
    arrays : those of its `model.npz`.

    Raises
    ------
    ValueError : the arrays are not those of this network.
    Unavailable : the environment of the framework could not be made.
    """
    engine = engine_of(described)
    python = environments.provide(engine)
    if python == sys.executable:
        return _restored(engine, described, arrays)
    elsewhere = Elsewhere(python, engine, described, arrays)
    return [partial(elsewhere.computed, number) for number in range(2)]


def engine_of(described: Mapping[str, Any]) -> str:
    """Return the engine that trained a network if it is installed, otherwise one that is.

    Where none is, it is the first one, which then states what is missing.
    """
    trained = described.get("engine") or DEFAULT
    offered = sorted(WORKLOADS[described["workload"]].engines, key=lambda each: each != trained)
    return next(filter(_is_installed, offered), offered[0])


def _is_installed(engine: str) -> bool:
    with suppress(Unavailable):
        return bool(interpreters.python(engine))
    return False


def _restored(engine: str, described: dict, arrays: dict[str, np.ndarray]) -> list[Predict]:
    """Return the functions of `restored` in this process, which has the framework."""
    # A model may be older than a knob or a setting of its workload.
    declared = WORKLOADS[described["workload"]]
    knobs = declared.knob_defaults | described["knobs"]
    described = described | {"settings": declared.setting_defaults | described["settings"]}
    work = workload(described["workload"], engine)
    framework = import_module(f"escala.engines.{engine}.functions")
    *rows, settings = form_of(described)
    functions = framework.Functions(work, settings)
    *found, form = functions.restored(*rows, knobs, arrays, require_shapes)
    return [partial(_in_blocks, each, rows_at_once(form)) for each in found]


def _in_blocks(function: Callable, size: int, inputs: Inputs) -> np.ndarray:
    """Return the results of a function for all rows, computed for `size` rows at once."""
    blocks = row_blocks(slice(0, len(inputs[0])), size)
    return np.concatenate([function(*(each[rows] for each in inputs)) for rows in blocks])


def form_of(described: dict) -> tuple[tuple[Spec, ...], tuple[int, ...], dict]:
    """Return the specs of the inputs, the shape of the outputs, and the settings."""
    data = described["data"]
    return specs(data), output_shape(data), described["settings"]


def require_shapes(shapes: Mapping[str, tuple], arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse arrays of other names or shapes, or without numbers, as a ValueError."""
    if shapes.keys() != arrays.keys():
        unlike = sorted(shapes.keys() ^ arrays.keys())
        raise ValueError(f"there are {len(arrays)} arrays for {len(shapes)}; see {unlike[0]}")
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != tuple(shape) or array.dtype.kind not in "fiu":
            raise ValueError(f"{name} is {array.dtype} {array.shape} in place of numbers {shape}")


class Elsewhere:
    """A network in a process of another Python, which ends with this object."""

    def __init__(self, python: str, engine: str, described: dict, arrays: dict[str, np.ndarray]):
        self._process, other = Pipe()
        with other:
            child = children.start(
                [python, "-P", "-m", __name__, engine],
                interpreters.variables(python, os.environ),
                None,
                given=other.fileno(),
            )
        weakref.finalize(self, _ended, self._process, child)
        self._python, self._child = python, child
        self._answer(json.dumps(described).encode(), _packed(arrays))

    def computed(self, number: int, inputs: Inputs) -> np.ndarray:
        """Return what a function of the network computes."""
        given = {f"input_{place}": array for place, array in enumerate(inputs)}
        return self._answer(_packed({"function": np.array(number)} | given))["arr_0"]

    def _answer(self, *asked: bytes) -> dict[str, np.ndarray]:
        """Return the arrays that the process sends; a ValueError with its error if it has one.

        If it has ended, as one that cannot be started or has no memory, that is `Unavailable`.
        """
        try:
            for each in asked:
                self._process.send_bytes(each)
            error = self._process.recv_bytes().decode()
            found = self._process.recv_bytes()
        except (EOFError, OSError):
            self._process.close()
            code = self._child.wait()
            raise Unavailable(
                f"{self._python}, which computes the network, ended with exit code {code}"
            ) from None
        if error:
            raise ValueError(error)
        return _unpacked(found)


def _ended(connection: Connection, child: Any) -> None:
    connection.close()
    child.wait()


def _serve(engine: str, connection: Connection) -> None:
    """Restore the network that is sent, and compute what is asked for until the other side ends."""

    def answer(make: Callable[[], Any]) -> Any:
        """Send the error of a function, or its array if it returns one."""
        error, made = "", None
        try:
            made = make()
        # The code of a user's workload may raise anything.
        except (Exception, SystemExit) as raised:
            error = user_code.message(raised)
        connection.send_bytes(error.encode())
        connection.send_bytes(_packed({"arr_0": made} if isinstance(made, np.ndarray) else {}))
        return made

    described = json.loads(connection.recv_bytes())
    arrays = _unpacked(connection.recv_bytes())
    functions = answer(lambda: _restored(engine, described, arrays))
    while functions:
        number, *inputs = _unpacked(connection.recv_bytes()).values()
        answer(partial(functions[int(number)], tuple(inputs)))


def _packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return arrays by name as bytes, which hold no code."""
    np.savez(file := io.BytesIO(), **arrays)
    return file.getvalue()


def _unpacked(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return dict(stored)


if __name__ == "__main__":
    with suppress(EOFError):
        _serve(sys.argv[1], Connection(os.dup(sys.stdin.fileno())))
