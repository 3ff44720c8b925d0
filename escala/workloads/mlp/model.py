"""A multilayer perceptron: dense layers with one activation, trained by plain gradient descent."""

from __future__ import annotations

from functools import partial

import tensorflow as tf
from tensorflow.keras import layers

from escala.engines.tensorflow.layers import class_squares, optimizer_by
from escala.engines.tensorflow.layers import row_losses as cross_entropies


def build(specs, outputs, settings, knobs) -> tf.keras.Model:
    """Build the network for rows of features.

    The only spec is float32 of shape (features,), and `outputs` the number of classes. The
    `settings` are `layers`, `activation`, `negative_slope`, `cost` and `output`.
    """
    [features], [classes] = specs, outputs
    activation = settings["activation"]
    if activation == "leaky-relu":
        activation = partial(tf.nn.leaky_relu, alpha=settings["negative_slope"])
    last = "softmax" if settings["cost"] == "cross-entropy" else settings["output"]
    return tf.keras.Sequential(
        [
            layers.Input(features.shape, dtype=features.dtype),
            *(layers.Dense(neurons, activation) for neurons in settings["layers"]),
            layers.Dense(classes, last),
        ],
        name="mlp",
    )


optimizer = optimizer_by("sgd")


def row_losses(targets, outputs, settings) -> tf.Tensor:
    """Return the cost of every row, float32 (rows,).

    `targets` are class numbers, int64 (rows,), and `outputs` float32 (rows, classes).
    """
    if settings["cost"] == "cross-entropy":
        return cross_entropies(targets, outputs, settings)
    return tf.reduce_sum(class_squares(targets, outputs), axis=-1) / 2
