"""Optimizers in the form of Keras, and in that of PyTorch, as `escala.engines.torch.optimizers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

KERAS, PYTORCH = "keras", "pytorch"
#: PyTorch's, outside of the square root.
EPSILON = 1e-8


class TorchRMSprop(tf.keras.optimizers.RMSprop):
    """PyTorch's RMSprop (torch 2.13, torch/optim/rmsprop.py): g / (√v + ε), v decays by 0.99."""

    def __init__(self, learning_rate: float):
        super().__init__(learning_rate, rho=0.99, epsilon=EPSILON)

    def update_step(self, gradient, variable):
        squares = self._velocities[self._index_dict[self._var_key(variable)]]
        gradient, rate = tf.convert_to_tensor(gradient), tf.cast(self.learning_rate, variable.dtype)
        squares.assign(self.rho * squares + (1 - self.rho) * tf.square(gradient))
        variable.assign_sub(rate * gradient / (tf.sqrt(squares) + self.epsilon))


class TorchAdam(tf.keras.optimizers.Adam):
    """PyTorch's Adam (torch 2.13, torch/optim/adam.py): epsilon is added to the corrected root."""

    def __init__(self, learning_rate: float):
        super().__init__(learning_rate, epsilon=EPSILON)

    def update_step(self, gradient, variable):
        number = self._index_dict[self._var_key(variable)]
        moment, squares = self._momentums[number], self._velocities[number]
        gradient, rate = tf.convert_to_tensor(gradient), tf.cast(self.learning_rate, variable.dtype)
        step = tf.cast(self.iterations + 1, variable.dtype)
        moment.assign_add((gradient - moment) * (1 - self.beta_1))
        squares.assign_add((tf.square(gradient) - squares) * (1 - self.beta_2))
        first, second = (
            1 - tf.pow(tf.cast(beta, variable.dtype), step) for beta in (self.beta_1, self.beta_2)
        )
        root = tf.sqrt(squares / second) + self.epsilon
        variable.assign_sub(rate * moment / first / root)


#: By name and form, an optimizer of a learning rate.
OPTIMIZERS: dict[tuple[str, str], Callable[[float], tf.keras.optimizers.Optimizer]] = {
    ("adam", KERAS): tf.keras.optimizers.Adam,
    ("adam", PYTORCH): TorchAdam,
    ("rmsprop", KERAS): tf.keras.optimizers.RMSprop,
    ("rmsprop", PYTORCH): TorchRMSprop,
    ("sgd", KERAS): tf.keras.optimizers.SGD,
    ("sgd", PYTORCH): tf.keras.optimizers.SGD,
}


def optimizer(
    name: str, learning_rate: float, settings: Mapping[str, Any]
) -> tf.keras.optimizers.Optimizer:
    """Return the optimizer `adam`, `rmsprop` or `sgd`.

    Parameters
    ----------
    settings : those of a workload; its `optimizer_form` is `keras`, the default, or `pytorch`.
    """
    return OPTIMIZERS[name, settings.get("optimizer_form", KERAS)](learning_rate)
