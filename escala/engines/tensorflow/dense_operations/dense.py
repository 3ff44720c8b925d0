"""The gradient of a dense layer's input."""

from __future__ import annotations

import tensorflow as tf

from escala.engines.tensorflow.dense_operations import compiled


def input_gradient(
    output_gradients: tf.Tensor, kernel: tf.Tensor, instructions: str = "auto"
) -> tf.Tensor:
    """Return output_gradients · kernelᵀ, float32 (rows, in), of float32 (rows, out) and (in, out).

    The kernel is on a CPU. Every element is summed in the order of the kernel's columns. So the
    result depends neither on the number of threads nor, with fused multiply-add, on the processor.
    `instructions` are `avx512f`, `avx2` or `baseline`; `auto` is the first that the processor has.
    """
    operations = compiled("input_gradient: tensorflow")
    return operations.escala_input_gradient(output_gradients, kernel, instructions=instructions)
