"""Dense layers with dropout for pictures: 784, 512, 512 and 10 neurons for MNIST.

The source work gives the number of parameters, 669 706. Layers, dropout and RMSprop are those of
the public example of Keras that has this number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.keras import layers

from escala.data.base import Spec
from escala.workloads.pictures import given_pictures


def build(
    specs: Sequence[Spec], outputs: tuple[int], settings: Mapping, knobs: Mapping
) -> tf.keras.Model:
    """Build the network for one input, pictures of shape (height, width, colours)."""
    [pictures], [classes] = specs, outputs
    given, pixels = given_pictures(pictures)
    found = layers.Flatten()(pixels)
    for neurons in settings["neurons"]:
        found = layers.Dense(neurons, "relu")(found)
        if settings["dropout"]:
            found = layers.Dropout(settings["dropout"])(found)
    return tf.keras.Model(given, layers.Dense(classes, "softmax")(found), name="mnist_mlp")


def optimizer(
    settings: Mapping, learning_rate: float, knobs: Mapping
) -> tf.keras.optimizers.Optimizer:
    """Return RMSprop."""
    return tf.keras.optimizers.RMSprop(learning_rate)


def row_losses(targets: tf.Tensor, outputs: tf.Tensor, settings: Mapping) -> tf.Tensor:
    """Return the categorical cross-entropy of every row in nats; targets are class numbers."""
    return tf.keras.losses.sparse_categorical_crossentropy(targets, outputs)
