"""RMSprop that updates each variable in one pass over memory.

A large kernel is updated by the two matrices whose product is its gradient, its *factors*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from escala.core.errors import Unavailable
from escala.engines.tensorflow.fast import load_operations

#: Kernels with fewer weights are updated without factors, because their update is a small part of a
#: step.
LEAST_WEIGHTS = 2**16
#: Options of Keras's RMSprop that change its formula.
_OTHER_UPDATES = (
    *("momentum", "centered", "weight_decay"),
    *("clipnorm", "clipvalue", "global_clipnorm", "use_ema"),
)
#: The knob's value that needs no compiler.
INSTEAD = "optimizer: fused"


def update(
    kernel: tf.Variable,
    mean_square: tf.Variable,
    inputs: tf.Tensor,
    output_gradients: tf.Tensor,
    learning_rate: tf.Tensor | float,
    rho: float,
    epsilon: float,
    instructions: str = "auto",
) -> tf.Operation | None:
    """Update a kernel and its mean square in place by the product of factors, as Keras's RMSprop.

    With the gradient g = inputsᵀ · output_gradients, v = ρ · v + (1 - ρ) · g² and then w = w - rate
    · g / √(v + ε), as in `keras.optimizers.RMSprop` of Keras 2.15 without momentum. g is computed
    block by block and never written to memory. The result does not depend on the number of threads,
    nor on the processor if it has fused multiply-add. If a value that was read from a variable is
    still in use, the update first copies the variable.

    Kernel and mean square are float32 (in, out), on a CPU, `inputs` float32 (rows, in), and
    `output_gradients` float32 (rows, out). `instructions` are `avx512f`, `avx2` or `baseline`;
    `auto` is the first of these that the processor has. The result is the operation, or None
    outside a graph.

    Shapes that do not fit are an InvalidArgumentError.
    """
    return load_operations("rmsprop", INSTEAD).escala_rmsprop_of_product(
        kernel.handle,
        mean_square.handle,
        inputs,
        output_gradients,
        tf.cast(learning_rate, tf.float32),
        rho=rho,
        epsilon=epsilon,
        instructions=instructions,
    )


def update_by_gradient(
    variable: tf.Variable,
    mean_square: tf.Variable,
    gradient: tf.Tensor,
    learning_rate: tf.Tensor | float,
    rho: float,
    epsilon: float,
    instructions: str = "auto",
) -> tf.Operation | None:
    """Update a variable and its mean square in place by the gradient; `update` has the formula.

    Variable, mean square and gradient are float32 of one shape, on a CPU. `instructions` and the
    result are as in `update`. Shapes that do not fit are an InvalidArgumentError.
    """
    return load_operations("rmsprop", INSTEAD).escala_rmsprop(
        variable.handle,
        mean_square.handle,
        gradient,
        tf.cast(learning_rate, tf.float32),
        rho=rho,
        epsilon=epsilon,
        instructions=instructions,
    )


class OnePassRMSprop(tf.keras.optimizers.RMSprop):
    """Keras's RMSprop, which updates each variable in one pass, and large kernels by factors.

    The factors are `fast.dense.Factors`. Keras itself updates a variable that is not float32, has a
    constraint or is on a GPU, and a large variable whose gradient has only some rows.

    `options` are options of Keras's RMSprop; an option that changes the formula is a ValueError.
    The operations may be `Unavailable`. Under `tf.distribute` they are always, because they would
    not sum the gradients of replicas.
    """

    def __init__(self, learning_rate: float = 0.001, **options: Any):
        super().__init__(learning_rate, **options)
        for name in _OTHER_UPDATES:
            if value := getattr(self, name):
                raise ValueError(f"{name} is {value}; an update in one pass does not have it")
        # For the variables that Keras updates. Without a GPU, Keras's constructor ignores this
        # option.
        self.jit_compile = True
        if tf.distribute.has_strategy():
            raise Unavailable(
                f"OnePassRMSprop sums no gradients under tf.distribute. Remedy: {INSTEAD}"
            )
        load_operations("rmsprop", INSTEAD)

    def takes_factors(self, variable: tf.Variable) -> bool:
        """Return whether the gradient of a variable may be factors."""
        return (
            _fits_operations(variable)
            and variable.shape.rank == 2
            and variable.shape.num_elements() >= LEAST_WEIGHTS
        )

    def apply_gradients(self, grads_and_vars: Iterable[tuple], **options: Any) -> tf.Variable:
        """Update variables by their gradients; a gradient may be factors."""
        pairs = []
        for gradient, variable in grads_and_vars:
            if isinstance(gradient, tf.IndexedSlices) and gradient.dense_shape is not None:
                size = tf.get_static_value(gradient.dense_shape)
                if size is not None and math.prod(size) < LEAST_WEIGHTS:
                    gradient = tf.convert_to_tensor(gradient)
            pairs.append((gradient, variable))
        others = [g for g, _ in pairs if g is not None and not _are_factors(g)]
        tensors = tf.nest.flatten(others, expand_composites=True)
        self._compute_current_learning_rate()
        by_keras = []
        for gradient, variable in pairs:
            if _are_factors(gradient):
                # Wait for all gradients. Until its end, the backward pass may read a kernel, and an
                # update would then copy the kernel.
                with tf.control_dependencies(tensors):
                    self._update(update, variable, gradient.inputs, gradient.output_gradients)
            elif isinstance(gradient, tf.Tensor) and _fits_operations(variable):
                self._update(update_by_gradient, variable, gradient)
            else:
                by_keras.append((gradient, variable))
        if not by_keras:
            # If Keras updates nothing, it does not count the step, so count it here.
            return self.iterations.assign_add(1)
        return super().apply_gradients(by_keras, **options)

    def _update(self, operation: Callable, variable: tf.Variable, *gradient: tf.Tensor) -> None:
        mean_square = self._velocities[self._index_dict[self._var_key(variable)]]
        operation(variable, mean_square, *gradient, self.learning_rate, self.rho, self.epsilon)


def _are_factors(gradient: Any) -> bool:
    return hasattr(gradient, "output_gradients")


def _fits_operations(variable: tf.Variable) -> bool:
    """Return whether the operations may update a variable."""
    return (
        variable.dtype == tf.float32
        and variable.constraint is None
        and "GPU" not in variable.device
    )
