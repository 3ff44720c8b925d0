"""Parts of a workload's `model_jax`: arrays in Keras's layout, layers, losses and optimizers.

A model has no state except its arrays, which are all trained, and draws no random numbers. So
dropout and moving statistics are not possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import one_hot

from escala.engines import layers

Values = Sequence[jax.Array]

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "linear": lambda values: values,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "softmax": jax.nn.softmax,
    "softplus": jax.nn.softplus,
    "tanh": jnp.tanh,
}


class Array(NamedTuple):
    """An array of a model: its name, its shape (one axis or more), and its initial law."""

    name: str
    shape: tuple[int, ...]
    law: layers.Law


class Model(NamedTuple):
    """A network.

    Attributes
    ----------
    arrays : the arrays, in the order of the weights of the workload's Keras model.
    outputs : a function of the arrays' values and of each input; JAX must be able to trace it.
    """

    arrays: tuple[Array, ...]
    outputs: Callable[..., jax.Array]

    def initial_values(self, seed: int) -> list[np.ndarray]:
        """Return the initial values for a seed, equal under every engine."""
        return list(layers.draw_weights([(array.law, array.shape) for array in self.arrays], seed))


class Optimizer(NamedTuple):
    """An optimizer.

    Attributes
    ----------
    slots : number of arrays, such as means, that it keeps for each array of the model; they begin
        at 0.
    update : a function of an array, the array's gradient and slots; returns the new array and
        slots.
    """

    name: str
    slots: int
    update: Callable[..., tuple]

    def apply(self, state: Sequence[Values], gradients: Values) -> list[list[jax.Array]]:
        """Return the state after an update: the arrays of a model, then the arrays of each slot."""
        arrays, *slots = state
        updated = map(self.update, arrays, gradients, *slots)
        return [list(values) for values in zip(*updated, strict=True)]


def sgd(learning_rate: float) -> Optimizer:
    """Return gradient descent without momentum."""
    return Optimizer("SGD", 0, lambda array, gradient: (array - learning_rate * gradient,))


def rmsprop(learning_rate: float) -> Optimizer:
    """Return RMSprop by the formula of Keras: g / √(v + 1e-7), where v decays by 0.9."""

    def update(array: jax.Array, gradient: jax.Array, squares: jax.Array) -> tuple:
        squares = 0.9 * squares + 0.1 * gradient**2
        return array - learning_rate * gradient / jnp.sqrt(squares + 1e-7), squares

    return Optimizer("RMSprop", 1, update)


def embedding(name: str, numbers: int, units: int) -> Array:
    """Return the table of a layer that maps numbers below `numbers` to vectors."""
    return Array(f"{name}/embeddings", (numbers, units), layers.uniform(0.05))


def dense(name: str, inputs: int, units: int) -> tuple[Array, Array]:
    """Return kernel and bias of a dense layer."""
    return convolution(name, inputs, units)


def convolution(name: str, inputs: int, units: int, *places: int) -> tuple[Array, Array]:
    """Return kernel and bias of a convolution; without `places`, of a dense layer."""
    kernel = Array(f"{name}/kernel", (*places, inputs, units), layers.GLOROT)
    return kernel, Array(f"{name}/bias", (units,), layers.ZEROS)


def class_losses(targets, outputs, settings=None) -> jax.Array:
    """Return the categorical cross-entropy of every row in nats, as a workload's `row_losses`.

    Parameters
    ----------
    targets : class numbers, (rows,).
    outputs : logarithms of the probabilities, (rows, classes).
    """
    return -jnp.take_along_axis(outputs, targets[:, None], axis=1)[:, 0]


def class_distances(targets: jax.Array, outputs: jax.Array) -> jax.Array:
    """Return the squared distance of every row's outputs from its one-hot class, (rows,)."""
    wanted = one_hot(targets, outputs.shape[-1], dtype=outputs.dtype)
    return jnp.square(wanted - outputs).sum(-1)


def probabilities(outputs, settings) -> jax.Array:
    """Return probabilities of classes from logarithms, as a workload's `probabilities`."""
    return jnp.exp(outputs)
