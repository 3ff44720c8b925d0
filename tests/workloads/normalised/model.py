"""A small network with batch normalisation and dropout."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

from escala.workloads.resnet34.model import NORMALISATIONS


class Masks(layers.Dropout):
    """Pass rows on, and write what dropout would keep of them: a file a process, a line a step."""

    def __init__(self, folder: str):
        super().__init__(0.5)
        self.folder = Path(folder)

    def call(self, inputs, training=None):
        if training is True:
            kept = super().call(tf.ones_like(inputs), training=True) > 0
            tf.numpy_function(self._write, [kept], [])
        return inputs

    def _write(self, kept: np.ndarray) -> None:
        self.folder.mkdir(exist_ok=True)
        with open(self.folder / str(os.getpid()), "a") as file:
            file.write(f"{kept.tobytes().hex()}\n")


def build(specs, outputs, settings, knobs) -> tf.keras.Model:
    [codes], [classes] = specs, outputs
    normalisation = NORMALISATIONS[knobs.get("batch_norm", "local")]
    return tf.keras.Sequential(
        [
            layers.Input(codes.shape, dtype=codes.dtype),
            layers.Rescaling(0.25),
            layers.Dense(8),
            normalisation(momentum=0.8),
            layers.ReLU(),
            layers.Dropout(settings["dropout"]),
            layers.Dense(classes, activation="softmax"),
            # The last one, so that the weights before it are drawn as without it.
            *([Masks(settings["masks"])] if "masks" in settings else []),
        ]
    )


def optimizer(settings, learning_rate, knobs) -> tf.keras.optimizers.Optimizer:
    return tf.keras.optimizers.SGD(learning_rate)


def row_losses(targets: tf.Tensor, outputs: tf.Tensor, settings: Mapping) -> tf.Tensor:
    return tf.keras.losses.sparse_categorical_crossentropy(targets, outputs)


def row_scores(targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the probability given to the right class."""
    return {"likelihood": tf.gather(outputs, targets, batch_dims=1)}
