"""A small network with batch normalisation and dropout."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
from tensorflow.keras import layers


def build(specs, outputs, settings, knobs) -> tf.keras.Model:
    [codes], [classes] = specs, outputs
    return tf.keras.Sequential(
        [
            layers.Input(codes.shape, dtype=codes.dtype),
            layers.Rescaling(0.25),
            layers.Dense(8),
            layers.BatchNormalization(momentum=0.8),
            layers.ReLU(),
            layers.Dropout(settings["dropout"]),
            layers.Dense(classes, activation="softmax"),
        ]
    )


def optimizer(settings, learning_rate, knobs) -> tf.keras.optimizers.Optimizer:
    return tf.keras.optimizers.SGD(learning_rate)


def row_losses(targets: tf.Tensor, outputs: tf.Tensor, settings: Mapping) -> tf.Tensor:
    return tf.keras.losses.sparse_categorical_crossentropy(targets, outputs)


def row_scores(targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the probability given to the right class."""
    return {"likelihood": tf.gather(outputs, targets, batch_dims=1)}
