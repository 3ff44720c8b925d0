"""Operations in C++ on dense layers, equal to TensorFlow's to rounding, and faster.

`rmsprop` updates a dense layer's kernel by the two factors of its gradient, without their product.
"""

from __future__ import annotations

from types import ModuleType

import tensorflow as tf

from escala.engines.tensorflow.compiled import operations


def compiled(instead: str) -> ModuleType:
    """Return the operations, see `escala.engines.tensorflow.compiled.operations`."""
    return operations("escala.engines.tensorflow.dense_operations", instead)


def input_gradient(
    output_gradients: tf.Tensor, kernel: tf.Tensor, instructions: str = "auto"
) -> tf.Tensor:
    """Return output_gradients · kernelᵀ, float32 (rows, in), of float32 (rows, out) and (in, out).

    The kernel is on a CPU. Every element is summed in the order of the kernel's columns. So the
    result depends neither on the number of threads nor, with fused multiply-add, on the processor.
    `instructions` are `avx512f`, `avx2` or `baseline`; `auto` is the first that the processor has.
    """
    made = compiled("input_gradient: tensorflow")
    found = made.escala_input_gradient(output_gradients, kernel, instructions=instructions)
    found.set_shape((output_gradients.shape[0], kernel.shape[0]))
    return found
