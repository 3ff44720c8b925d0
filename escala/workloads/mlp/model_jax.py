"""A multilayer perceptron in JAX: dense layers with one activation, as in `model`."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp

from escala.engines.jax import models


def build(specs, outputs, settings, knobs) -> models.Model:
    """Build the network for rows of features; see `model.build`.

    With `cross-entropy` the network gives the logarithms of the probabilities.
    """
    [features], [classes] = specs, outputs
    sizes = [*features.shape, *settings["layers"], classes]
    layers = [models.dense(f"{n}", *pair) for n, pair in enumerate(pairwise(sizes))]
    slope = settings["negative_slope"]
    hidden = models.ACTIVATIONS.get(
        settings["activation"], lambda values: jnp.where(values > 0, values, slope * values)
    )
    last = models.ACTIVATIONS[settings["output"]]
    if settings["cost"] == "cross-entropy":
        last = jax.nn.log_softmax

    def compute(arrays: models.Values, rows: jax.Array) -> jax.Array:
        *others, (kernel, bias) = zip(arrays[::2], arrays[1::2], strict=True)
        for weights, shift in others:
            rows = hidden(rows @ weights + shift)
        return last(rows @ kernel + bias)

    return models.Model(tuple(array for layer in layers for array in layer), compute)


def optimizer(settings, learning_rate, knobs) -> models.Optimizer:
    """Return stochastic gradient descent without momentum."""
    return models.sgd(learning_rate)


def probabilities(outputs, settings) -> jax.Array:
    """Return the outputs that the Keras model gives for the classes."""
    return jnp.exp(outputs) if settings["cost"] == "cross-entropy" else outputs


def row_losses(targets, outputs, settings) -> jax.Array:
    """Return the cost of every row, float32 (rows,).

    Parameters
    ----------
    targets : class numbers (rows,).
    outputs : float32 (rows, classes).
    """
    if settings["cost"] == "cross-entropy":
        return models.class_losses(targets, outputs)
    return models.class_distances(targets, outputs) / 2
