"""Trained models on disk, and classifying with them, whatever trained them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np

from escala.errors import InputError
from escala.files import read_json, sha256_file, write_json

FORMAT = 1
DESCRIPTION = "model.json"
#: The file that holds the weights, by how they were trained; neither is a pickle.
FILES = {"gradient": "model.keras", "fit": "model.npz"}
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
    folder: Path, workload: str, kind: str, settings: dict, data: dict, weights_sha256: str
) -> None:
    """Write what a model's file does not say of itself to `model.json` beside it.

    Parameters
    ----------
    folder : holds the model's file, and receives `model.json`.
    kind : how it was trained, `gradient` or `fit`.
    settings : of the workload.
    data : the `dataset.json` of the split it was trained on.
    weights_sha256 : digest of the weights, as in `run.json`.
    """
    content = {
        "format": FORMAT,
        "workload": workload,
        "kind": kind,
        "classes": data["classes"],
        "length": data["length"],
        "settings": settings,
        "sha256": sha256_file(folder / FILES[kind]),
        "weights_sha256": weights_sha256,
        "data": data,
    }
    write_json(folder / DESCRIPTION, content)


def load(folder: str | Path) -> Classifier:
    """Return the model that a run has left in its folder.

    Raises
    ------
    InputError : the folder holds no model, or its file is not the one it was described with.
    """
    from escala.workloads import workload

    folder = Path(folder)
    if not (folder / DESCRIPTION).is_file():
        raise InputError(
            folder,
            DESCRIPTION,
            "no model was kept here",
            "name the folder of a run that ended ok with save_model: true",
        )
    description = read_json(folder / DESCRIPTION)
    file = folder / FILES[description["kind"]]
    if not file.is_file() or sha256_file(file) != description["sha256"]:
        raise InputError(
            file, file.name, "is missing or damaged", f"remove {folder}/run.json and run again"
        )
    module = workload(description["workload"])
    return Classifier(
        description["workload"],
        description["classes"],
        description["length"],
        description,
        _RESTORE[description["kind"]](file, module),
    )


def row_blocks(codes: np.ndarray) -> Iterator[np.ndarray]:
    """Yield consecutive rows, few enough for a network's activations."""
    for start in range(0, len(codes), PREDICTION_ROWS):
        yield codes[start : start + PREDICTION_ROWS]


def _restore_network(file: Path, module: ModuleType) -> Probabilities:
    # `module` is imported, so that layers of its own are known to Keras.
    import tensorflow as tf

    model = tf.keras.models.load_model(file, compile=False, safe_mode=True)
    signature = tf.TensorSpec((None, model.input_shape[1]), tf.uint8)

    @tf.function(input_signature=(signature,))
    def predict(codes):
        return model(codes, training=False)

    return lambda codes: np.concatenate([predict(block).numpy() for block in row_blocks(codes)])


def _restore_weights(file: Path, module: ModuleType) -> Probabilities:
    with np.load(file, allow_pickle=False) as stored:
        return partial(module.probabilities, dict(stored))


_RESTORE = {"gradient": _restore_network, "fit": _restore_weights}
