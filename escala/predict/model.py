"""Load a trained model, and predict with it in a Python that has its framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.engines import DEFAULT
from escala.core.errors import InputError, Unavailable
from escala.core.files import read_json, sha256_file
from escala.data.base import Spec, is_class_name, output_shape, specs
from escala.engines import elsewhere, environments
from escala.engines.elsewhere import Inputs
from escala.workloads import WORKLOADS, scores_module, workload
from escala.workloads.models import DESCRIPTION, FORMAT, WEIGHTS, row_blocks, rows_at_once

#: Keys of `model.json` with the types of their values.
_KEYS = {"workload": str, "knobs": dict, "settings": dict, "sha256": str, "data": dict}

#: A function from the arrays of a model's inputs to an array. The result has one row for each row
#: of the inputs.
Predict = Callable[[Inputs], np.ndarray]


@dataclass(frozen=True)
class Classifier:
    """A trained model.

    Attributes
    ----------
    workload : name of the workload.
    classes : names of the classes, in the order of the columns of the probabilities. A model that
        predicts numbers has no classes, and its `probabilities` returns these numbers.
    inputs : specs of the model's inputs.
    description : content of `model.json`; the key `data` is the `dataset.json` of the training
        split.
    columns : the function `columns` of the workload, if it offers one.
    """

    workload: str
    classes: list[str]
    inputs: tuple[Spec, ...]
    description: dict
    _probabilities: Predict
    _predictions: Predict
    columns: Callable[[np.ndarray, dict], dict] | None = None

    def probabilities(self, *inputs: np.ndarray) -> np.ndarray:
        """Return the probability of every class, float32 of shape (rows, classes).

        Each argument is the array of one input of the model, (rows, …).

        Raises
        ------
        ValueError : the dtype of an array, or the shape of its rows, differs from the training
            rows.
        """
        self._check(inputs)
        if not len(inputs[0]):
            one_row = (np.zeros((1, *spec.shape), spec.dtype) for spec in self.inputs)
            return self._probabilities(tuple(one_row))[:0]
        return self._probabilities(inputs)

    def predictions(self, *inputs: np.ndarray) -> np.ndarray:
        """Return what the workload predicts for one row or more, such as the numbers of words.

        Arguments and errors are those of `probabilities`.
        """
        self._check(inputs)
        return self._predictions(inputs)

    def _check(self, inputs: Inputs) -> None:
        """Raise a ValueError if arrays have another dtype or shape than the training rows."""
        for array, spec in zip(inputs, self.inputs, strict=True):
            if (array.dtype, array.shape[1:]) != (spec.dtype, spec.shape):
                raise ValueError(
                    f"{spec.name} of type {array.dtype} and shape {array.shape}; this model reads "
                    f"{spec.dtype} of shape ({', '.join(map(str, ('rows', *spec.shape)))})"
                )


def load(folder: str | Path) -> Classifier:
    """Return the model in the folder of a run.

    The workload's own code builds the model, and the files give it only numbers. So whoever wrote
    the folder can make the model wrong, but cannot run code (docs/decisions/users-code.md).

    Raises
    ------
    InputError : there is no model; its format is older; its weights are damaged, or do not fit
        `model.json`; or its framework is not installed.
    """
    folder = Path(folder)
    description = _read_description(folder)
    file = folder / WEIGHTS
    if not file.is_file() or sha256_file(file) != description["sha256"]:
        raise InputError(file, WEIGHTS, "is missing or damaged", _remedy(folder))
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = dict(stored)
        if WORKLOADS[description["workload"]].is_fitted:
            module = workload(description["workload"])
            require_shapes(module.shapes(*_build_arguments(description)), arrays)
            probabilities = partial(module.probabilities, arrays)

            def predictions(inputs: Inputs) -> np.ndarray:
                return probabilities(inputs).argmax(axis=-1)

        else:
            # `call` gets the place of a function in the list that `make_functions` returns.
            call = elsewhere.make_caller(__name__, engine_of(description), description, arrays)
            probabilities, predictions = partial(call, 0), partial(call, 1)
    except Unavailable as error:
        remedy = "use it where the model was trained"
        raise InputError(folder, None, f"cannot be used here: {error}", remedy) from error
    # A file from an unknown source may raise any error.
    except Exception as error:
        reason = f"does not hold the weights of this model: {error}"
        raise InputError(file, WEIGHTS, reason, _remedy(folder)) from error
    return Classifier(
        description["workload"],
        description["data"].get("classes", []),
        specs(description["data"]),
        description,
        probabilities,
        predictions,
        getattr(scores_module(description["workload"]), "columns", None),
    )


def _remedy(folder: Path) -> str:
    return f"remove {folder}/run.json and run again, or get the model's folder again"


def _read_description(folder: Path) -> dict:
    """Return the content of a folder's `model.json`. Refuse content that describes no model."""
    path = folder / DESCRIPTION
    if not path.is_file():
        remedy = "name the folder of a run that ended ok with save_model: true"
        raise InputError(folder, DESCRIPTION, "no model was kept here", remedy)
    try:
        description = read_json(path)
    except ValueError:
        description = None
    version = description.get("format") if isinstance(description, dict) else None
    if version != FORMAT:
        reason = f"is not a description of format {FORMAT}; the model of an older format is "
        reason += "not opened, because such a file can run code"
        raise InputError(path, version, reason, _remedy(folder))
    for key, kind in _KEYS.items():
        if type(description.get(key)) is not kind:
            raise InputError(path, key, f"is missing, or not a {kind.__name__}", _remedy(folder))
    if description["workload"] not in WORKLOADS:
        remedy = "use the version of Escala that trained it, name its folder in the experiment as "
        remedy += f"`path`, or use one of {', '.join(WORKLOADS)}"
        raise InputError(path, description["workload"], "is not a workload here", remedy)
    for key, reason in _faults(description["data"]):
        raise InputError(path, key, reason, _remedy(folder))
    return description


def _faults(data: dict) -> Iterator[tuple[str, str]]:
    """Yield each key below `data` of a description whose value is invalid, with the reason."""
    # A model of numbers has no key `classes`.
    classes = data.get("classes", ["any", "two"])
    if not isinstance(classes, list) or len(classes) < 2:
        yield "data.classes", "holds fewer than two names"
    elif not all(isinstance(name, str) and is_class_name(name) for name in classes):
        yield "data.classes", "holds a name that no class may have"
    elif len(set(classes)) < len(classes):
        yield "data.classes", "holds a name twice"
    try:
        sizes = [size for spec in specs(data) for size in spec.shape] + [*output_shape(data)]
    except (KeyError, TypeError, ValueError):
        yield "data.inputs", "is missing, or does not describe arrays"
    else:
        if not all(type(size) is int and size >= 1 for size in sizes):
            yield "data.inputs", "holds a shape that no row of an array has"
    if not isinstance(data.get("sha256"), dict):
        yield "data.sha256", "is missing, or not a dict"


def engine_of(description: Mapping[str, Any]) -> str:
    """Return the engine that trained a network, or another one if that is not installed.

    If no engine is installed, return the first one: its use tells what is missing.
    """
    trained_by = description.get("engine") or DEFAULT
    engines = WORKLOADS[description["workload"]].engines
    preferred = sorted(engines, key=lambda engine: engine != trained_by)
    for engine in preferred:
        with suppress(Unavailable):
            if environments.python(engine):
                return engine
    return preferred[0]


def make_functions(engine: str, description: dict, arrays: dict[str, np.ndarray]) -> list[Predict]:
    """Return two functions of the inputs: one returns a network's outputs, one its predictions.

    `escala.engines.elsewhere` calls `make_functions` by its name, in a process of the engine.

    Raises
    ------
    ValueError : the names or the shapes of the arrays are not those of the network's weights.
    """
    # A model may be older than a knob or a setting of its workload.
    declared = WORKLOADS[description["workload"]]
    knobs = declared.knob_defaults | description["knobs"]
    description = description | {"settings": declared.setting_defaults | description["settings"]}
    inputs, outputs, settings = _build_arguments(description)
    framework = import_module(f"escala.engines.{engine}.functions")
    functions = framework.Functions(workload(description["workload"], engine), settings)
    compute, predict, row_shape = functions.build_trained(
        inputs, outputs, knobs, arrays, require_shapes
    )

    def call_by_blocks(function: Callable, inputs: Inputs) -> np.ndarray:
        blocks = row_blocks(slice(0, len(inputs[0])), rows_at_once(row_shape))
        return np.concatenate([function(*(array[rows] for array in inputs)) for rows in blocks])

    return [partial(call_by_blocks, function) for function in (compute, predict)]


def _build_arguments(description: dict) -> tuple[tuple[Spec, ...], tuple[int, ...], dict]:
    """Return the arguments from which a workload's module builds a model.

    The arguments are the specs of the inputs, the shape of the outputs, and the settings.
    """
    data = description["data"]
    return specs(data), output_shape(data), description["settings"]


def require_shapes(shapes: Mapping[str, tuple], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise a ValueError if arrays have other names or shapes, or values that are no numbers."""
    if shapes.keys() != arrays.keys():
        only_in_one = sorted(shapes.keys() ^ arrays.keys())
        raise ValueError(f"{len(arrays)} arrays in place of {len(shapes)}; see {only_in_one[0]}")
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != tuple(shape) or array.dtype.kind not in "fiu":
            raise ValueError(f"{name} is {array.dtype} {array.shape} in place of numbers {shape}")
