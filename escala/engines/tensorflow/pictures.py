"""The input and the loss of networks that classify pictures."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from escala.data.base import Spec


def picture_input(spec: Spec) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the input of a network for pictures, and its pixels as float32 from 0 to 1.

    Pictures are uint8 from 0 to 255 or float16 from 0 to 1, of shape (height, width, colours).
    """
    given = tf.keras.layers.Input(spec.shape, dtype=spec.dtype)
    largest = 255.0 if spec.dtype == "uint8" else 1.0
    return given, tf.keras.layers.Rescaling(1 / largest)(given)


def row_losses(targets: tf.Tensor, outputs: tf.Tensor, settings: Mapping) -> tf.Tensor:
    """Return the categorical cross-entropy of every row in nats; targets are class numbers."""
    return tf.keras.losses.sparse_categorical_crossentropy(targets, outputs)
