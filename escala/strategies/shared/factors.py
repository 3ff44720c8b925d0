"""A dense layer's gradient as two factors.

The gradient of a dense layer's kernel is a product: the layer's input, (rows, in), transposed,
times the gradient of its output before the activation, (rows, out). Over the rows of all ranks,
this product is the sum of the ranks' gradients. So ranks may gather each other's factors instead of
summing the products: rows · (in + out) numbers of each rank instead of in · out. The larger factor
is known before the backward pass begins, and is sent while it runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import NamedTuple

import tensorflow as tf

#: Bytes that factors must save each rank in a step; below it, the additional exchange costs more.
WORTH_BYTES = 2**18


class Factors(NamedTuple):
    """The gradient of a kernel of shape (in, out), not multiplied out.

    `inputs` has the shape (rows, in), `errors` (rows, out).
    """

    inputs: tf.Tensor
    errors: tf.Tensor

    def product(self) -> tf.Tensor:
        return tf.matmul(self.inputs, self.errors, transpose_a=True)


def dense(gradient: tf.Tensor | tf.IndexedSlices | Factors) -> tf.Tensor:
    """Return a gradient in any form as a tensor of its variable's shape."""
    if isinstance(gradient, Factors):
        return gradient.product()
    return tf.convert_to_tensor(gradient)


def worthwhile(model: tf.keras.Model, rows: int, ranks: int) -> list[tf.keras.layers.Dense]:
    """Return the dense layers whose factors are clearly fewer bytes than their product.

    `forward` can take only a chain of layers apart. For another model no layer is returned.

    To gather, each of n ranks receives the others' factors, (n-1)/n · rows · (in + out) numbers; to
    sum by a ring, 2 · (n-1)/n · in · out.

    Parameters
    ----------
    rows : of a step, over all ranks together.
    """

    def saved(layer: tf.keras.layers.Dense) -> float:
        inputs, outputs = layer.kernel.shape
        fewer = 2 * inputs * outputs - rows * (inputs + outputs)
        return fewer * (ranks - 1) / ranks * layer.kernel.dtype.size

    if not isinstance(model, tf.keras.Sequential):
        return []
    layers = [layer for layer in model.layers if _is_product(layer)]
    return [layer for layer in layers if saved(layer) > WORTH_BYTES]


def _is_product(layer: tf.keras.layers.Layer) -> bool:
    """Return whether a layer is a product of its rows with a kernel, a bias, and an activation.

    `forward` computes such a layer without calling it, which would leave out an activity
    regulariser.
    """
    plain = type(layer) is tf.keras.layers.Dense and layer.activity_regularizer is None
    return plain and layer.use_bias and layer.input.shape.rank == 2


def forward(
    model: tf.keras.Sequential, values: tf.Tensor, apart: Collection[tf.keras.layers.Dense]
) -> tuple[tf.Tensor, dict]:
    """Return a model's output in training, and the input and output of each layer in `apart`.

    The latter are given by a reference to the layer's kernel. The output is that before the
    activation.
    """
    seen = {}
    values = tf.cast(values, model.inputs[0].dtype)
    for layer in model.layers:
        if layer in apart:
            # The factors give the gradient of this product, and of nothing else.
            kernel = tf.stop_gradient(layer.kernel)
            sums = tf.nn.bias_add(tf.matmul(values, kernel), layer.bias)
            seen[layer.kernel.ref()] = values, sums
            values = layer.activation(sums)
        elif "training" in inspect.signature(layer.call).parameters:
            values = layer(values, training=True)
        else:
            values = layer(values)
    return values, seen


def gradients(
    tape: tf.GradientTape, target: tf.Tensor, variables: Sequence[tf.Variable], seen: dict
) -> list[tf.Tensor | tf.IndexedSlices | Factors]:
    """Return the gradients by variables, as factors for the kernels `seen` by `forward`.

    If a kernel acts on the target in another way too, for example through a regulariser, its
    gradient is no product of factors. Then the product is computed, and the rest is added.
    """
    sums = {ref: sums for ref, (_, sums) in seen.items()}
    found, errors = tape.gradient(target, (list(variables), sums))

    def of(variable: tf.Variable, rest: tf.Tensor | tf.IndexedSlices | None):
        if variable.ref() not in seen:
            return rest
        inputs, _ = seen[variable.ref()]
        factors = Factors(inputs, errors[variable.ref()])
        return factors if rest is None else factors.product() + tf.convert_to_tensor(rest)

    return [of(variable, rest) for variable, rest in zip(variables, found, strict=True)]
