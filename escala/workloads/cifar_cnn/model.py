"""Three blocks of convolutions and a dense layer for CIFAR-10, reconstructed.

The source work gives the number of parameters, 276 138, and no layers. These give exactly this
number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.keras import layers

from escala.core.errors import InputError
from escala.data.base import Spec
from escala.engines.tensorflow.layers import picture_input, row_losses

__all__ = ["build", "optimizer", "row_losses"]
#: Filters of the two convolutions of each block, and neurons of the dense layer.
FILTERS, NEURONS = (32, 64, 64), 512
#: Height and width that the blocks need to leave one number.
SMALLEST = 22


def build(
    specs: Sequence[Spec], outputs: tuple[int], settings: Mapping, knobs: Mapping
) -> tf.keras.Model:
    """Build the network for pictures, (height, width, colours); too small ones are refused."""
    [pictures], [classes] = specs, outputs
    if min(size := pictures.shape[:2]) < SMALLEST:
        reason = f"is less than {SMALLEST} × {SMALLEST}, which three blocks of cifar-cnn take"
        raise InputError("size", size, reason, "set the dataset's size")
    dropout = settings["dropout"]
    given, found = picture_input(pictures)
    for filters in FILTERS:
        found = layers.Conv2D(filters, 3, padding="same", activation="relu")(found)
        found = layers.Conv2D(filters, 3, activation="relu")(found)
        found = layers.Dropout(dropout)(layers.MaxPooling2D()(found))
    found = layers.Dense(NEURONS, "relu")(layers.Flatten()(found))
    found = layers.Dropout(2 * dropout)(found)
    return tf.keras.Model(given, layers.Dense(classes, "softmax")(found), name="cifar_cnn")


def optimizer(
    settings: Mapping, learning_rate: float, knobs: Mapping
) -> tf.keras.optimizers.Optimizer:
    """Return RMSprop."""
    return tf.keras.optimizers.RMSprop(learning_rate)
