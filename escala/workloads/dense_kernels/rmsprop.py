"""RMSprop that updates large kernels by the factors of their gradients, in one pass over memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from escala.workloads.dense_kernels.operations import operations

#: Kernels with fewer weights are updated as all other variables are: their update is a small part
#: of a step.
LEAST_WEIGHTS = 2**16


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
    """Update a kernel and its mean square in place, as Keras's RMSprop by the product of factors.

    With the gradient g = inputsᵀ · output_gradients, v = ρ · v + (1 - ρ) · g² and then
    w = w - rate · g / √(v + ε), as in `keras.optimizers.RMSprop` of Keras 2.15 without momentum. g
    is computed block by block and never written to memory. The result does not depend on the number
    of threads, nor on the processor if it has fused multiply-add.

    While a value that was read from a variable is in use, the update copies the variable first.

    Parameters
    ----------
    kernel, mean_square : float32 (in, out), on a CPU.
    inputs : float32 (rows, in).
    output_gradients : float32 (rows, out).
    instructions : `avx512f`, `avx2` or `baseline`; `auto` is the first that the processor has.

    Returns
    -------
    The operation; None outside a graph.

    Raises
    ------
    TypeError : an argument is not float32.
    ValueError : the shapes do not fit.
    Unavailable : the operation cannot be compiled or loaded.
    """
    given = {
        "kernel": kernel,
        "mean_square": mean_square,
        "inputs": inputs,
        "output_gradients": output_gradients,
    }
    for name, each in given.items():
        if each.dtype != tf.float32:
            raise TypeError(f"{name} is {each.dtype.name}; the update computes with float32 only")
        if each.shape.rank not in (None, 2):
            raise ValueError(f"{name} has the shape {each.shape}; the update takes matrices")
    wide = inputs.shape[1:].concatenate(output_gradients.shape[1:])
    if not (kernel.shape == mean_square.shape and kernel.shape.is_compatible_with(wide)):
        raise ValueError(
            f"a kernel {kernel.shape} and its mean square {mean_square.shape} cannot be updated by "
            f"inputs {inputs.shape} and output gradients {output_gradients.shape}"
        )
    return operations().escala_rmsprop_of_product(
        kernel.handle,
        mean_square.handle,
        inputs,
        output_gradients,
        tf.cast(learning_rate, tf.float32),
        rho=rho,
        epsilon=epsilon,
        instructions=instructions,
    )


class OnePassRMSprop(tf.keras.optimizers.RMSprop):
    """Keras's RMSprop, whose gradients may also be factors, for kernels for which it takes them.

    `inputs` (rows, in) and `output_gradients` (rows, out) are the attributes of such a gradient:
    `escala.strategies.shared.factors.Factors`. XLA compiles the update of each other variable to
    one loop.

    Parameters
    ----------
    options : of Keras's RMSprop.

    Raises
    ------
    ValueError : an option changes the update to another one than `update` computes.
    Unavailable : the operation cannot be compiled or loaded.
    """

    elementwise = True

    def __init__(self, learning_rate: float = 0.001, **options: Any):
        super().__init__(learning_rate, **options)
        others = {
            "momentum": self.momentum,
            "centered": self.centered,
            "weight_decay": self.weight_decay,
            "clipnorm": self.clipnorm,
            "clipvalue": self.clipvalue,
            "global_clipnorm": self.global_clipnorm,
            "use_ema": self.use_ema,
        }
        for name, value in others.items():
            if value:
                raise ValueError(f"{name} is {value}; an update in one pass does not have it")
        # Keras uses this option of the constructor only if there is a GPU.
        self.jit_compile = True
        operations()

    def takes_factors(self, variable: tf.Variable) -> bool:
        """Return whether the gradient of a variable may be given as its factors."""
        return (
            variable.dtype == tf.float32
            and variable.shape.rank == 2
            and variable.shape.num_elements() >= LEAST_WEIGHTS
            and variable.constraint is None
            and "GPU" not in variable.device
        )

    def apply_gradients(self, grads_and_vars: Iterable[tuple], **options: Any) -> tf.Variable:
        """Update variables by their gradients, of which some may be factors."""
        pairs = list(grads_and_vars)
        whole = [(g, v) for g, v in pairs if not hasattr(g, "output_gradients")]
        tensors = tf.nest.flatten([g for g, _ in whole if g is not None], expand_composites=True)
        self._compute_current_learning_rate()
        # The other gradients are the last that the backward pass computes. Before, it may still
        # read a kernel, which the update would then copy.
        with tf.control_dependencies(tensors):
            for gradient, variable in pairs:
                if hasattr(gradient, "output_gradients"):
                    self._update_by(gradient, variable)
        if not whole:
            # Keras would not count this step.
            return self.iterations.assign_add(1)
        return super().apply_gradients(whole, **options)

    def _update_by(self, factors: Any, kernel: tf.Variable) -> None:
        update(
            kernel,
            self._velocities[self._index_dict[self._var_key(kernel)]],
            factors.inputs,
            factors.output_gradients,
            self.learning_rate,
            self.rho,
            self.epsilon,
        )
