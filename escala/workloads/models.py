"""Trained models on disk, and classifying with them, whatever trained them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from escala.errors import InputError
from escala.files import read_json, sha256_file, write_json

FORMAT = 2
#: What is kept of a model: what it is, and the arrays it was trained to. Neither can hold code.
DESCRIPTION, WEIGHTS = FILES = ("model.json", "model.npz")
_KEYS = {
    "workload": str,
    "stem": str,
    "classes": list,
    "length": int,
    "settings": dict,
    "sha256": str,
    "data": dict,
}
#: What `schemas/config.schema.yaml` allows as a name, and as `window.method`.
NAME = "[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
WINDOW_METHODS = ("start", "random", "tiles")
PREDICTION_ROWS = 256

Probabilities = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Classifier:
    """A trained model.

    Attributes
    ----------
    workload : its name.
    classes : their names, in the order of the columns of the probabilities.
    length : codes it reads of a sequence.
    description : the content of its `model.json`; `data` in it is the `dataset.json` of the split
        it was trained on.
    """

    workload: str
    classes: list[str]
    length: int
    description: dict
    _probabilities: Probabilities

    def probabilities(self, codes: np.ndarray) -> np.ndarray:
        """Return the probability of every class, float32 of shape (rows, classes).

        Parameters
        ----------
        codes : uint8 of shape (rows, length), A 1, C 2, G 3, T 4, all else and padding 0.

        Raises
        ------
        ValueError : the codes are of another type or length.
        """
        if codes.dtype != np.uint8 or codes.ndim != 2 or codes.shape[1] != self.length:
            raise ValueError(
                f"codes of type {codes.dtype} and shape {codes.shape}; this model reads uint8 of "
                f"shape (rows, {self.length})"
            )
        if not len(codes):
            return np.empty((0, len(self.classes)), np.float32)
        return self._probabilities(codes)


def describe(
    folder: Path, workload: str, stem: str, settings: dict, data: dict, weights_sha256: str
) -> None:
    """Write `model.json` beside a model's weights: all that it takes to build the model again.

    Parameters
    ----------
    folder : holds `model.npz`, and receives `model.json`.
    stem : the variant's knob that a network was built with.
    settings : of the workload.
    data : the `dataset.json` of the split it was trained on.
    weights_sha256 : digest of the weights, as in `run.json`.
    """
    content = {
        "format": FORMAT,
        "workload": workload,
        "stem": stem,
        "classes": data["classes"],
        "length": data["length"],
        "settings": settings,
        "sha256": sha256_file(folder / WEIGHTS),
        "weights_sha256": weights_sha256,
        "data": data,
    }
    write_json(folder / DESCRIPTION, content)


def load(folder: str | Path) -> Classifier:
    """Return the model that a run has left in its folder.

    The workload's own code builds the model, and the file gives it nothing but numbers: whoever
    wrote the folder can make it classify wrongly, and cannot run code
    (docs/decisions/022-weights-only.md).

    Raises
    ------
    InputError : the folder holds no model, one of an older version, or one whose weights are
        damaged or do not fit what `model.json` describes.
    """
    from escala.workloads import WORKLOADS

    folder = Path(folder)
    described = _description(folder, WORKLOADS)
    file = folder / WEIGHTS
    if not file.is_file() or sha256_file(file) != described["sha256"]:
        raise InputError(file, WEIGHTS, "is missing or damaged", _again(folder))
    restore = {"gradient": _network, "fit": _fit}[WORKLOADS[described["workload"]].kind]
    try:
        with np.load(file, allow_pickle=False) as stored:
            probabilities = restore(described, dict(stored))
    # What is wrong with a file from anywhere may show as any error.
    except Exception as error:
        raise InputError(
            file, WEIGHTS, f"does not hold the weights of this model: {error}", _again(folder)
        ) from error
    return Classifier(
        described["workload"],
        described["classes"],
        described["length"],
        described,
        probabilities,
    )


def row_blocks(codes: np.ndarray) -> Iterator[np.ndarray]:
    """Yield consecutive rows, few enough for a network's activations."""
    for start in range(0, len(codes), PREDICTION_ROWS):
        yield codes[start : start + PREDICTION_ROWS]


def _again(folder: Path) -> str:
    return f"remove {folder}/run.json and run again, or have the model sent again"


def _description(folder: Path, workloads: Mapping[str, Any]) -> dict:
    """Return the content of a folder's `model.json`, once it is one that `load` can use."""
    path = folder / DESCRIPTION
    if not path.is_file():
        raise InputError(
            folder,
            DESCRIPTION,
            "no model was kept here",
            "name the folder of a run that ended ok with save_model: true",
        )
    try:
        found = read_json(path)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(
            path,
            found.get("format") if isinstance(found, dict) else None,
            f"is not a description of format {FORMAT}; a model.keras of an older one is not "
            "opened, for such a file can run code",
            _again(folder),
        )
    for key, kind in _KEYS.items():
        if type(found.get(key)) is not kind:
            raise InputError(path, key, f"is missing, or no {kind.__name__}", _again(folder))
    if found["workload"] not in workloads:
        raise InputError(
            path,
            found["workload"],
            "is no workload here",
            f"use the version of Escala that trained it, or one of {', '.join(workloads)}",
        )
    for key, reason in _faults(found):
        raise InputError(path, key, reason, _again(folder))
    return found


def _faults(described: dict) -> Iterator[tuple[str, str]]:
    """Yield the keys of a description whose values no run writes, each with the reason."""
    classes, window = described["classes"], described["data"].get("window")
    if not all(isinstance(name, str) and re.fullmatch(NAME, name) for name in classes):
        yield "classes", f"holds a name that does not match {NAME}"
    elif len(classes) < 2 or len(set(classes)) < len(classes):
        yield "classes", "holds fewer than two names, or one of them twice"
    if described["length"] < 1:
        yield "length", "is less than 1"
    if not isinstance(window, dict) or window.get("method") not in WINDOW_METHODS:
        yield "data.window.method", f"is missing, or none of {', '.join(WINDOW_METHODS)}"
    elif type(window.get("reverse_complement")) is not bool:
        yield "data.window.reverse_complement", "is missing, or no bool"
    if not isinstance(described["data"].get("sha256"), dict):
        yield "data.sha256", "is missing, or no dict"


def _require_shapes(shapes: Mapping[str, tuple], arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse arrays that are not of the names and shapes given, or hold other than numbers.

    Raises
    ------
    ValueError : with the first of them.
    """
    if shapes.keys() != arrays.keys():
        unlike = sorted(shapes.keys() ^ arrays.keys())
        raise ValueError(f"there are {len(arrays)} arrays for {len(shapes)}; see {unlike[0]}")
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != tuple(shape) or array.dtype.kind not in "fiu":
            raise ValueError(f"{name} is {array.dtype} {array.shape} in place of numbers {shape}")


def _network(described: dict, arrays: dict[str, np.ndarray]) -> Probabilities:
    import tensorflow as tf

    from escala.workloads import workload

    module = workload(described["workload"])
    model = module.model(described["length"], len(described["classes"]), described["stem"])
    # The names that `np.savez` gives: those of variables depend on what else a process has built.
    shapes = {f"arr_{number}": tuple(v.shape) for number, v in enumerate(model.weights)}
    _require_shapes(shapes, arrays)
    model.set_weights([arrays[name] for name in shapes])
    signature = tf.TensorSpec((None, model.input_shape[1]), tf.uint8)

    @tf.function(input_signature=(signature,))
    def predict(codes):
        return model(codes, training=False)

    return lambda codes: np.concatenate([predict(block).numpy() for block in row_blocks(codes)])


def _fit(described: dict, arrays: dict[str, np.ndarray]) -> Probabilities:
    from escala.workloads import workload

    module = workload(described["workload"])
    _require_shapes(module.shapes(len(described["classes"]), described["settings"]), arrays)
    return partial(module.probabilities, arrays)
