"""The network VGG16 with published weights, for features of pictures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf


def make_functions(engine: str, described: dict, arrays: dict) -> list[Callable]:
    """Return the function of pictures, uint8 (pictures, 224, 224, 3), to their features, float32.

    `described` names the file of `weights`, and the `layer` whose outputs they are.
    """
    whole = tf.keras.applications.VGG16(weights=None)
    whole.load_weights(described["weights"])
    model = tf.keras.Model(whole.input, whole.get_layer(described["layer"]).output)

    def compute(inputs: tuple[np.ndarray]) -> np.ndarray:
        [pictures] = inputs
        prepared = tf.keras.applications.vgg16.preprocess_input(pictures.astype(np.float32))
        return model.predict_on_batch(prepared)

    return [compute]
