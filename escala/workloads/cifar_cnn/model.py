"""Three blocks of convolutions and a dense layer for CIFAR-10, reconstructed.

The source work gives the number of parameters, 276 138, and no layers. The layers here have exactly
276 138 parameters.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.keras import layers

from escala.core.errors import InputError
from escala.engines.tensorflow.layers import optimizer_by, picture_input, row_losses

__all__ = ["build", "optimizer", "row_losses"]
#: Filters of the two convolutions of each block, and neurons of the dense layer.
FILTERS, NEURONS = (32, 64, 64), 512
#: The smallest height and width: after the blocks, one number of each is left.
SMALLEST = 22


def build(specs, outputs, settings, knobs) -> tf.keras.Model:
    """Build the network for pictures, (height, width, colours); too small pictures are refused."""
    [pictures], [classes] = specs, outputs
    if min(size := pictures.shape[:2]) < SMALLEST:
        reason = f"is less than {SMALLEST} × {SMALLEST}, which three blocks of cifar-cnn take"
        raise InputError("size", size, reason, "set the dataset's size")
    dropout = settings["dropout"]
    inputs, values = picture_input(pictures)
    for filters in FILTERS:
        values = layers.Conv2D(filters, 3, padding="same", activation="relu")(values)
        values = layers.Conv2D(filters, 3, activation="relu")(values)
        values = layers.Dropout(dropout)(layers.MaxPooling2D()(values))
    values = layers.Dense(NEURONS, "relu")(layers.Flatten()(values))
    values = layers.Dropout(2 * dropout)(values)
    return tf.keras.Model(inputs, layers.Dense(classes, "softmax")(values), name="cifar_cnn")


optimizer = optimizer_by("rmsprop")
