"""A multilayer perceptron in JAX: dense layers with one activation, as in `model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp

from escala.data.base import Spec
from escala.engines.jax import models


def build(
    specs: Sequence[Spec], outputs: tuple[int], settings: Mapping, knobs: Mapping
) -> models.Model:
    """Build the network for rows of features; see `model.build`.

    With `cross-entropy` it gives the logarithms of the probabilities.
    """
    [features], [classes] = specs, outputs
    sizes = [*features.shape, *settings["layers"], classes]
    layers = [models.dense(f"{n}", *pair) for n, pair in enumerate(pairwise(sizes))]
    hidden = _activation(settings)
    last = models.ACTIVATIONS[settings["output"]]
    if settings["cost"] == "cross-entropy":
        last = jax.nn.log_softmax

    def computed(arrays: models.Values, rows: jax.Array) -> jax.Array:
        *others, (kernel, bias) = zip(arrays[::2], arrays[1::2], strict=True)
        for weights, shift in others:
            rows = hidden(rows @ weights + shift)
        return last(rows @ kernel + bias)

    return models.Model(tuple(array for layer in layers for array in layer), computed)


def optimizer(settings: Mapping, learning_rate: float, knobs: Mapping) -> models.Optimizer:
    """Return stochastic gradient descent without momentum."""
    return models.sgd(learning_rate)


def probabilities(outputs: jax.Array, settings: Mapping) -> jax.Array:
    """Return what the Keras model gives for the classes."""
    return jnp.exp(outputs) if settings["cost"] == "cross-entropy" else outputs


def row_losses(targets: jax.Array, outputs: jax.Array, settings: Mapping) -> jax.Array:
    """Return the cost of every row, float32 (rows,).

    Parameters
    ----------
    targets : class numbers (rows,).
    outputs : float32 (rows, classes).
    """
    if settings["cost"] == "cross-entropy":
        return models.class_losses(targets, outputs)
    return models.squared_distances(targets, outputs) / 2


def _activation(settings: Mapping):
    if settings["activation"] == "leaky-relu":
        return lambda values: jnp.where(values > 0, values, settings["negative_slope"] * values)
    return models.ACTIVATIONS[settings["activation"]]
