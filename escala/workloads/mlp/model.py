"""A multilayer perceptron: dense layers with one activation, trained by plain gradient descent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import tensorflow as tf
from tensorflow.keras import layers

from escala.data.base import Spec


def build(
    specs: Sequence[Spec], outputs: tuple[int], settings: Mapping, knobs: Mapping
) -> tf.keras.Model:
    """Build the network for rows of features.

    The only spec is float32 of shape (features,), and `outputs` the number of classes. The
    `settings` are `layers`, `activation`, `negative_slope`, `cost` and `output`.
    """
    [features], [classes] = specs, outputs
    last = "softmax" if settings["cost"] == "cross-entropy" else settings["output"]
    return tf.keras.Sequential(
        [
            layers.Input(features.shape, dtype=features.dtype),
            *(layers.Dense(neurons, _activation(settings)) for neurons in settings["layers"]),
            layers.Dense(classes, last),
        ],
        name="mlp",
    )


def optimizer(
    settings: Mapping, learning_rate: float, knobs: Mapping
) -> tf.keras.optimizers.Optimizer:
    """Return stochastic gradient descent without momentum."""
    return tf.keras.optimizers.SGD(learning_rate)


def row_losses(targets: tf.Tensor, outputs: tf.Tensor, settings: Mapping) -> tf.Tensor:
    """Return the cost of every row, float32 (rows,).

    `targets` are class numbers, int64 (rows,), and `outputs` float32 (rows, classes).
    """
    if settings["cost"] == "cross-entropy":
        return tf.keras.losses.sparse_categorical_crossentropy(targets, outputs)
    wanted = tf.one_hot(targets, outputs.shape[-1], dtype=outputs.dtype)
    return tf.reduce_sum(tf.square(wanted - outputs), axis=-1) / 2


def _activation(settings: Mapping):
    if settings["activation"] == "leaky-relu":
        return partial(tf.nn.leaky_relu, alpha=settings["negative_slope"])
    return settings["activation"]
