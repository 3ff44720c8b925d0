"""The product of a dense layer, with a faster gradient of its input."""

from __future__ import annotations

import tensorflow as tf

from escala.workloads.dense_kernels.operations import operations


def product(values: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Return values · kernel, whose gradient by `values` is `input_gradient`.

    Parameters
    ----------
    values : float32 (rows, in).
    kernel : float32 (in, out), on a CPU.
    """

    @tf.custom_gradient
    def multiplied(values: tf.Tensor, kernel: tf.Tensor):
        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            of_kernel = tf.matmul(values, upstream, transpose_a=True)
            return input_gradient(kernel, upstream), of_kernel

        return tf.matmul(values, kernel), gradients

    return multiplied(values, kernel)


def input_gradient(
    kernel: tf.Tensor, output_gradients: tf.Tensor, instructions: str = "auto"
) -> tf.Tensor:
    """Return output_gradients · kernelᵀ, float32 (rows, in).

    It is computed as the product kernel · output_gradientsᵀ, in tiles that are transposed before
    they are written. TensorFlow's product reads the kernel, far the largest matrix, against its
    order in memory.

    Parameters
    ----------
    kernel : float32 (in, out), on a CPU.
    output_gradients : float32 (rows, out).
    instructions : as for `escala.workloads.dense_kernels.rmsprop.update`.

    Raises
    ------
    Unavailable : the operation cannot be compiled or loaded.
    """
    return operations().escala_input_gradient(kernel, output_gradients, instructions=instructions)
