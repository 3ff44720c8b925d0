"""Dense layers with dropout for pictures: 784 inputs, then 512, 512 and 10 neurons for MNIST.

The work that this reproduces (Ben Abdallah et al., 2022) gives only the number of parameters,
669 706. Layers, dropout and RMSprop are those of the public example of Keras that has this number.

With `neurons: [192]`, `dropout: 0`, `activation: sigmoid`, `cost: mean-square` and `optimizer: sgd`
it is the network of 152 650 parameters by which Cruz Varona (2021) compared TensorFlow and PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.keras import layers

from escala.data.base import Spec
from escala.engines.tensorflow import layers as picture_losses
from escala.engines.tensorflow.layers import OPTIMIZERS, picture_input


def build(
    specs: Sequence[Spec], outputs: tuple[int], settings: Mapping, knobs: Mapping
) -> tf.keras.Model:
    """Build the network for one input, pictures of shape (height, width, colours)."""
    [pictures], [classes] = specs, outputs
    inputs, pixels = picture_input(pictures)
    hidden = layers.Flatten()(pixels)
    for neurons in settings["neurons"]:
        hidden = layers.Dense(neurons, settings["activation"])(hidden)
        if settings["dropout"]:
            hidden = layers.Dropout(settings["dropout"])(hidden)
    last = "softmax" if settings["cost"] == "cross-entropy" else settings["output"]
    return tf.keras.Model(inputs, layers.Dense(classes, last)(hidden), name="mnist_mlp")


def optimizer(
    settings: Mapping, learning_rate: float, knobs: Mapping
) -> tf.keras.optimizers.Optimizer:
    """Return RMSprop, or stochastic gradient descent without momentum."""
    return OPTIMIZERS[settings["optimizer"]](learning_rate)


def row_losses(targets: tf.Tensor, outputs: tf.Tensor, settings: Mapping) -> tf.Tensor:
    """Return the cost of every row, float32 (rows,); targets are class numbers."""
    if settings["cost"] == "cross-entropy":
        return picture_losses.row_losses(targets, outputs, settings)
    wanted = tf.one_hot(targets, outputs.shape[-1], dtype=outputs.dtype)
    return tf.reduce_mean(tf.square(wanted - outputs), axis=-1)
