"""Dense layers with dropout for pictures: 784 inputs, then 512, 512 and 10 neurons for MNIST.

The work that this reproduces (Ben Abdallah et al., 2022) gives only the number of parameters,
669 706. Layers, dropout and RMSprop are from the public example of Keras that has this number of
parameters.

With `neurons: [192]`, `dropout: 0`, `activation: sigmoid`, `cost: mean-square` and `optimizer: sgd`
this is the network of 152 650 parameters with which Cruz Varona (2021) compared TensorFlow and
PyTorch.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.keras import layers

from escala.engines.tensorflow.layers import class_squares, optimizer_by, picture_input
from escala.engines.tensorflow.layers import row_losses as cross_entropies


def build(specs, outputs, settings, knobs) -> tf.keras.Model:
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


optimizer = optimizer_by()


def row_losses(targets, outputs, settings) -> tf.Tensor:
    """Return the cost of every row, float32 (rows,); targets are class numbers."""
    if settings["cost"] == "cross-entropy":
        return cross_entropies(targets, outputs, settings)
    return tf.reduce_mean(class_squares(targets, outputs), axis=-1)
