"""What networks for pictures share."""

from __future__ import annotations

import tensorflow as tf

from escala.data.base import Spec


def given_pictures(spec: Spec) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the input of a network for pictures, and its pixels as float32 from 0 to 1.

    Parameters
    ----------
    spec : uint8 from 0 to 255 or float16 from 0 to 1, of shape (height, width, colours).
    """
    given = tf.keras.layers.Input(spec.shape, dtype=spec.dtype)
    largest = 255.0 if spec.dtype == "uint8" else 1.0
    return given, tf.keras.layers.Rescaling(1 / largest)(given)
