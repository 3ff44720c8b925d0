"""Restore a trained network, in a Python that has its framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from escala.core.engines import DEFAULT
from escala.core.errors import Unavailable
from escala.data.base import Spec, output_shape, specs
from escala.engines import elsewhere, interpreters
from escala.engines.elsewhere import Inputs
from escala.workloads import WORKLOADS, workload
from escala.workloads.models import row_blocks, rows_at_once

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
    compute = elsewhere.computing(__name__, engine_of(described), described, arrays)
    return [partial(compute, number) for number in range(2)]


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


def make_functions(engine: str, described: dict, arrays: dict[str, np.ndarray]) -> list[Predict]:
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
