"""Compute a dense layer's gradient as two factors, which ranks can exchange instead of it.

The gradient of a dense layer's kernel is the product Xᵀ · G. X is the layer's input, of shape
(rows, in). G is the gradient of the layer's output before the activation, of shape (rows, out). If
the factors of all ranks are joined along the rows, their product is the sum of the ranks'
gradients. So the ranks can gather the factors of all ranks and multiply them, and need no sum of
the products.

A rank with r rows then sends r · (in + out) numbers; for the product it would send in · out. X is
known before the backward pass begins, so a strategy can send it during that pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import NamedTuple

import tensorflow as tf

#: A layer is factored only if each rank then receives fewer bytes per step, by more than this
#: number. The gather is one more exchange per step: for a smaller difference it costs more time
#: than it saves.
MIN_SAVED_BYTES = 2**18

# Keras exports this class under no public name.
_Functional = tf.keras.Sequential.__base__


class Factors(NamedTuple):
    """The gradient of a kernel of shape (in, out), as two factors.

    Attributes
    ----------
    inputs : the layer's input, of shape (rows, in).
    output_gradients : the gradient of the layer's output before the activation, of shape
        (rows, out).
    """

    inputs: tf.Tensor
    output_gradients: tf.Tensor

    def product(self) -> tf.Tensor:
        return tf.matmul(self.inputs, self.output_gradients, transpose_a=True)


def dense(gradient: tf.Tensor | tf.IndexedSlices | Factors) -> tf.Tensor:
    """Return a gradient in any form as a tensor of its variable's shape."""
    if isinstance(gradient, Factors):
        return gradient.product()
    return tf.convert_to_tensor(gradient)


def layers_worth_factoring(
    model: tf.keras.Model, rows: int, ranks: int
) -> list[tf.keras.layers.Dense]:
    """Return the dense layers for which an exchange of factors saves enough bytes.

    Enough is more than `MIN_SAVED_BYTES`.

    Only chains of layers are supported (`_chain`). For other models the list is empty.

    If n ranks gather the factors, each receives (n-1)/n · rows · (in + out) numbers. If they sum
    the products by a ring, each receives 2 · (n-1)/n · in · out numbers.

    Parameters
    ----------
    rows : the global batch.
    """

    def saved_bytes(layer: tf.keras.layers.Dense) -> float:
        inputs, outputs = layer.kernel.shape
        fewer = 2 * inputs * outputs - rows * (inputs + outputs)
        return fewer * (ranks - 1) / ranks * layer.kernel.dtype.size

    layers = [layer for layer in _chain(model) if _is_plain_dense(layer)]
    return [layer for layer in layers if saved_bytes(layer) > MIN_SAVED_BYTES]


def _chain(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    """Return the layers of a chain, from the first to the last, without its input.

    In a chain, each layer is called once, and only with the output of the layer before. The list is
    empty for any other model, and for a model of a subclass, whose `call` may do more.
    """
    if type(model) is tf.keras.Sequential:
        return model.layers
    if type(model) is not _Functional or len(model.inputs) > 1 or len(model.outputs) > 1:
        return []
    [output] = model.inputs
    layers = model.layers[1:]
    for layer in layers:
        [call, *other_calls] = layer.inbound_nodes
        arguments = [*call.call_args, *call.call_kwargs.values()]
        if other_calls or list(map(id, arguments)) != [id(output)]:
            return []
        output = call.outputs
    return layers if output is model.outputs[0] else []


def _is_plain_dense(layer: tf.keras.layers.Layer) -> bool:
    """Return whether a layer computes activation(rows @ kernel + bias), and nothing else.

    `forward` computes such a layer itself. It would leave out an activity regulariser, which only a
    call of the layer applies.
    """
    plain = type(layer) is tf.keras.layers.Dense and layer.activity_regularizer is None
    return plain and layer.use_bias and layer.input.shape.rank == 2


def forward(
    model: tf.keras.Model, values: tf.Tensor, factored: Collection[tf.keras.layers.Dense]
) -> tuple[tf.Tensor, dict]:
    """Return the output of a chain in training, and what the gradients of some layers need.

    Parameters
    ----------
    factored : layers from `layers_worth_factoring`.

    Returns
    -------
    The model's output, and a dict. Its keys are `kernel.ref()` of each layer in `factored`. Its
    values are the layer's input and its output before the activation.
    """
    recorded = {}
    values = tf.cast(values, model.inputs[0].dtype)
    for layer in _chain(model):
        if layer in factored:
            # The factors give the gradient of this use of the kernel, so the tape must not compute
            # it. The tape computes the gradients of other uses, for example in a regulariser.
            kernel = tf.stop_gradient(layer.kernel)
            sums = tf.nn.bias_add(tf.matmul(values, kernel), layer.bias)
            recorded[layer.kernel.ref()] = values, sums
            values = layer.activation(sums)
        elif "training" in inspect.signature(layer.call).parameters:
            values = layer(values, training=True)
        else:
            values = layer(values)
    return values, recorded


def gradients(
    tape: tf.GradientTape, target: tf.Tensor, variables: Sequence[tf.Variable], recorded: dict
) -> list[tf.Tensor | tf.IndexedSlices | Factors]:
    """Return the gradient of each variable. A kernel in `recorded` gets `Factors`.

    If the target depends on such a kernel in another way too, for example through a regulariser, a
    tensor is returned for it: the product of the factors plus the gradient of the other uses.

    Parameters
    ----------
    recorded : the dict that `forward` returned, with the layers' inputs and their outputs before
        the activation.
    """
    outputs = {kernel: output for kernel, (_, output) in recorded.items()}
    taped, output_gradients = tape.gradient(target, (list(variables), outputs))

    def combine(variable: tf.Variable, taped: tf.Tensor | tf.IndexedSlices | None):
        if variable.ref() not in recorded:
            return taped
        inputs, _ = recorded[variable.ref()]
        factors = Factors(inputs, output_gradients[variable.ref()])
        return factors if taped is None else factors.product() + tf.convert_to_tensor(taped)

    return [combine(variable, each) for variable, each in zip(variables, taped, strict=True)]
