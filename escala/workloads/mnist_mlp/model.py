"""Dense layers with dropout for pictures: 784 inputs, then 512, 512 and 10 neurons for MNIST.

The work that this reproduces (Ben Abdallah et al., 2022) gives only the number of parameters,
669 706. Layers, dropout and RMSprop are those of the public example of Keras that has this number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.keras import layers

from escala.data.base import Spec
from escala.workloads.pictures import picture_input, row_losses

__all__ = ["build", "optimizer", "row_losses"]


def build(
    specs: Sequence[Spec], outputs: tuple[int], settings: Mapping, knobs: Mapping
) -> tf.keras.Model:
    """Build the network for one input, pictures of shape (height, width, colours)."""
    [pictures], [classes] = specs, outputs
    inputs, pixels = picture_input(pictures)
    hidden = layers.Flatten()(pixels)
    for neurons in settings["neurons"]:
        hidden = layers.Dense(neurons, "relu")(hidden)
        if settings["dropout"]:
            hidden = layers.Dropout(settings["dropout"])(hidden)
    return tf.keras.Model(inputs, layers.Dense(classes, "softmax")(hidden), name="mnist_mlp")


def optimizer(
    settings: Mapping, learning_rate: float, knobs: Mapping
) -> tf.keras.optimizers.Optimizer:
    """Return RMSprop."""
    return tf.keras.optimizers.RMSprop(learning_rate)
