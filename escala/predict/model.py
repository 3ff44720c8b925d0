"""Load a trained network or fit, and predict with it, in a Python that has its framework."""

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

_KEYS = {"workload": str, "knobs": dict, "settings": dict, "sha256": str, "data": dict}

Predict = Callable[[Inputs], np.ndarray]


@dataclass(frozen=True)
class Classifier:
    """A trained model.

    Attributes
    ----------
    workload : its name.
    classes : their names, in the order of the columns of the probabilities; empty if the model
        predicts numbers, which `probabilities` then returns.
    inputs : specs of its inputs.
    description : the content of its `model.json`; its `data` is the `dataset.json` of the training
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

        There is an array for each of `inputs`, with the shape and dtype of the training rows;
        another one is a ValueError.
        """
        self._check(inputs)
        if not len(inputs[0]):
            one_row = (np.zeros((1, *spec.shape), spec.dtype) for spec in self.inputs)
            return self._probabilities(tuple(one_row))[:0]
        return self._probabilities(inputs)

    def predictions(self, *inputs: np.ndarray) -> np.ndarray:
        """Return the workload's predictions for one row or more, as those of a run's test rows.

        Arguments and errors are those of `probabilities`.
        """
        self._check(inputs)
        return self._predictions(inputs)

    def _check(self, inputs: Inputs) -> None:
        """Refuse arrays with another dtype or shape than the training rows, as a ValueError."""
        for array, spec in zip(inputs, self.inputs, strict=True):
            if (array.dtype, array.shape[1:]) != (spec.dtype, spec.shape):
                raise ValueError(
                    f"{spec.name} of type {array.dtype} and shape {array.shape}; this model reads "
                    f"{spec.dtype} of shape ({', '.join(map(str, ('rows', *spec.shape)))})"
                )


def load(folder: str | Path) -> Classifier:
    """Return the model in the folder of a run.

    The workload's own code builds the model, and the files give it only numbers. So whoever wrote
    the folder can make the model wrong, but cannot run code (docs/decisions/users-code.md). A
    folder without a model, a model of an older version, and weights that are damaged or do not fit
    `model.json`, are refused.
    """
    folder = Path(folder)
    described = _description(folder)
    file = folder / WEIGHTS
    if not file.is_file() or sha256_file(file) != described["sha256"]:
        raise InputError(file, WEIGHTS, "is missing or damaged", _again(folder))
    try:
        with np.load(file, allow_pickle=False) as stored:
            arrays = dict(stored)
        if WORKLOADS[described["workload"]].is_fitted:
            functions = _fit(described, arrays)
        else:
            compute = elsewhere.make_caller(__name__, engine_of(described), described, arrays)
            functions = [partial(compute, number) for number in range(2)]
    except Unavailable as error:
        remedy = "use it where the model was trained"
        raise InputError(folder, None, f"cannot be used here: {error}", remedy) from error
    # A file from an unknown source may raise any error.
    except Exception as error:
        reason = f"does not hold the weights of this model: {error}"
        raise InputError(file, WEIGHTS, reason, _again(folder)) from error
    return Classifier(
        described["workload"],
        described["data"].get("classes", []),
        specs(described["data"]),
        described,
        *functions,
        getattr(scores_module(described["workload"]), "columns", None),
    )


def _again(folder: Path) -> str:
    return f"remove {folder}/run.json and run again, or get the model's folder again"


def _description(folder: Path) -> dict:
    """Return the content of a folder's `model.json`, checked for `load`."""
    path = folder / DESCRIPTION
    if not path.is_file():
        remedy = "name the folder of a run that ended ok with save_model: true"
        raise InputError(folder, DESCRIPTION, "no model was kept here", remedy)
    try:
        described = read_json(path)
    except ValueError:
        described = None
    form = described.get("format") if isinstance(described, dict) else None
    if form != FORMAT:
        reason = f"is not a description of format {FORMAT}; the model of an older format is "
        reason += "not opened, because such a file can run code"
        raise InputError(path, form, reason, _again(folder))
    for key, kind in _KEYS.items():
        if type(described.get(key)) is not kind:
            raise InputError(path, key, f"is missing, or not a {kind.__name__}", _again(folder))
    if described["workload"] not in WORKLOADS:
        remedy = "use the version of Escala that trained it, name its folder in the experiment as "
        remedy += f"`path`, or use one of {', '.join(WORKLOADS)}"
        raise InputError(path, described["workload"], "is not a workload here", remedy)
    for key, reason in _faults(described):
        raise InputError(path, key, reason, _again(folder))
    return described


def _faults(described: dict) -> Iterator[tuple[str, str]]:
    """Yield the keys of a description whose values are invalid, each with the reason."""
    data = described["data"]
    classes = data.get("classes", ["of", "numbers"])
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


def _fit(described: dict, arrays: dict[str, np.ndarray]) -> tuple[Predict, Predict]:
    """Return the functions from inputs to the probabilities of classes, and to the largest."""
    module = workload(described["workload"])
    require_shapes(module.shapes(*form_of(described)), arrays)
    probabilities = partial(module.probabilities, arrays)
    return probabilities, lambda inputs: probabilities(inputs).argmax(axis=-1)


def engine_of(described: Mapping[str, Any]) -> str:
    """Return the engine that trained a network if it is installed, otherwise one that is.

    Where none is, it is the first one, which then states what is missing.
    """
    trained = described.get("engine") or DEFAULT
    offered = sorted(WORKLOADS[described["workload"]].engines, key=lambda engine: engine != trained)
    for engine in offered:
        with suppress(Unavailable):
            if environments.python(engine):
                return engine
    return offered[0]


def make_functions(engine: str, described: dict, arrays: dict[str, np.ndarray]) -> list[Predict]:
    """Return the functions to the outputs of a network, and to its predictions, in this process.

    Raises
    ------
    ValueError : the arrays are not those of this network.
    """
    # A model may be older than a knob or a setting of its workload.
    declared = WORKLOADS[described["workload"]]
    knobs = declared.knob_defaults | described["knobs"]
    described = described | {"settings": declared.setting_defaults | described["settings"]}
    work = workload(described["workload"], engine)
    framework = import_module(f"escala.engines.{engine}.functions")
    *rows, settings = form_of(described)
    functions = framework.Functions(work, settings)
    *outputs, form = functions.build_trained(*rows, knobs, arrays, require_shapes)

    def compute(function: Callable, inputs: Inputs) -> np.ndarray:
        blocks = row_blocks(slice(0, len(inputs[0])), rows_at_once(form))
        return np.concatenate([function(*(array[rows] for array in inputs)) for rows in blocks])

    return [partial(compute, function) for function in outputs]


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
