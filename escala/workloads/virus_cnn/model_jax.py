"""The convolutional virus classifier in JAX, layer by layer as in `model`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from escala.engines.jax import models
from escala.workloads.virus_cnn import require_plain_layers

CODES = 5


def build(specs, outputs, settings, knobs) -> models.Model:
    """Build the network for codes (rows, letters), uint8 from 0 to 4; it gives log-probabilities.

    Raises
    ------
    Unavailable : a knob has a value that only TensorFlow's engine has.
    """
    require_plain_layers(knobs)
    [codes], [classes] = specs, outputs
    places = ((codes.shape[0] - 1) // 2 - 1) // 2
    arrays = (
        models.embedding("embedding", CODES, 8),
        *models.convolution("first", 8, 128, 2),
        *models.convolution("second", 128, 64, 2),
        *models.dense("dense", 64 * places, 128),
        *models.dense("further", 128, 64),
        *models.dense("last", 64, classes),
    )
    return models.Model(arrays, network)


def network(arrays: models.Values, codes: jax.Array) -> jax.Array:
    """Return the logarithms of the probabilities of the classes, (rows, classes)."""
    table, *arrays = arrays
    first, second, dense, further, last = zip(arrays[::2], arrays[1::2], strict=True)
    letters = jax.nn.one_hot(codes, CODES, dtype=table.dtype) @ table
    values = _halve(_convolve(_halve(_convolve(letters, *first)), *second))
    values = values.reshape(len(values), -1)
    for kernel, bias in (dense, further):
        values = jax.nn.relu(values @ kernel + bias)
    kernel, bias = last
    return jax.nn.log_softmax(values @ kernel + bias)


def _convolve(values: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Return ReLU of a convolution of width 2 over (rows, places, channels), by one product."""
    pairs = jnp.concatenate([values[:, :-1], values[:, 1:]], axis=-1)
    return jax.nn.relu(pairs @ kernel.reshape(-1, kernel.shape[-1]) + bias)


def _halve(values: jax.Array) -> jax.Array:
    """Return the maximum of every two places; of equal values, the first gets the gradient."""
    places = values.shape[1] // 2 * 2
    one, other = values[:, 0:places:2], values[:, 1:places:2]
    return jnp.where(one >= other, one, other)


def optimizer(settings, learning_rate, knobs) -> models.Optimizer:
    """Return RMSprop."""
    return models.rmsprop(learning_rate)


#: The outputs are logarithms of the probabilities.
probabilities, row_losses = models.probabilities, models.class_losses
