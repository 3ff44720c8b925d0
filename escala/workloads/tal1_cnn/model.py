"""The motif classifier of Ben Abdallah, Ben Zinouba and Elkhadiri (2022)."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.keras import layers

from escala.core.errors import InputError
from escala.engines.tensorflow.layers import optimizer_by


def build(specs, outputs, settings, knobs) -> tf.keras.Model:
    """Build convolution, global maximum, and one sigmoid unit: 993 parameters by default.

    The output of the model is the probabilities of both classes. The sigmoid gives the probability
    of the second class. The only input is uint8 of shape (length, 4), one-hot letters, and
    `outputs` is (2,). A filter with more letters than a sequence is refused.
    """
    [sequence] = specs
    width, letters = settings["width"], sequence.shape[0]
    if width > letters:
        reason = f"is more than the {letters} letters of a sequence"
        raise InputError(
            "width", width, reason, "set a smaller width, or a larger length of the dataset"
        )
    inputs = layers.Input(sequence.shape, dtype=sequence.dtype)
    numbers = layers.Rescaling(1.0)(inputs)
    matches = layers.Conv1D(settings["filters"], width, activation="relu")(numbers)
    motif = layers.Dense(1, activation="sigmoid")(layers.GlobalMaxPooling1D()(matches))
    background = layers.Rescaling(-1.0, offset=1.0)(motif)
    return tf.keras.Model(inputs, layers.Concatenate()([background, motif]), name="tal1_cnn")


optimizer = optimizer_by("adam")


def row_losses(targets, outputs, settings) -> tf.Tensor:
    """Return the binary cross-entropy of every row in nats, float32 (rows,)."""
    labels = tf.cast(targets[:, None], outputs.dtype)
    return tf.keras.losses.binary_crossentropy(labels, outputs[:, 1:])
