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

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from escala.core.errors import Unavailable
from escala.engines.tensorflow.building import as_graph
from escala.engines.tensorflow.dense_operations.rmsprop import OnePassRMSprop
from escala.workloads.models import given

# Keras exports this class under no public name.
_Functional = tf.keras.Sequential.__base__


class Factors(NamedTuple):
    """The gradient of a kernel of shape (in, out), as two factors.

    They are the layer's input, (rows, in), and the gradient of its output before the activation,
    (rows, out).
    """

    inputs: tf.Tensor
    output_gradients: tf.Tensor

    def product(self) -> tf.Tensor:
        return tf.matmul(self.inputs, self.output_gradients, transpose_a=True)


class Exchanged(Factors):
    """Factors of all ranks' rows, which need no exchange."""


class InMemory(Factors):
    """Factors of a rank's own rows, which ranks exchange through memory that they share.

    They are known only after the layer's product, when nobody reads the kernel any more.
    """


#: Computes a layer's product from the layer and its input. Returns the product, and a function from
#: the gradient of the output before the activation to the factors of the kernel's gradient.
Method = Callable[[tf.keras.layers.Dense, tf.Tensor], tuple[tf.Tensor, Callable]]


def as_factors(
    kind: type[Factors], layer: tf.keras.layers.Dense, values: tf.Tensor
) -> tuple[tf.Tensor, Callable]:
    """Compute a layer's product; its kernel's gradient are factors of a type. A `Method`."""
    # The factors give the gradient of this use of the kernel, so the tape must not compute it. The
    # tape computes the gradients of other uses, for example in a loss that the model adds.
    kernel = tf.stop_gradient(layer.kernel)

    @tf.custom_gradient
    def product(values: tf.Tensor):
        return tf.matmul(values, kernel), lambda up: tf.matmul(up, kernel, transpose_b=True)

    outputs = product(values)

    def factors_of(output_gradients: tf.Tensor) -> Factors:
        if kind is InMemory:
            # A loss may be linear in the product: then its gradient does not depend on it.
            with tf.control_dependencies([outputs]):
                output_gradients = tf.identity(output_gradients)
        return kind(values, output_gradients)

    return outputs, factors_of


def dense(gradient: tf.Tensor | tf.IndexedSlices | Factors) -> tf.Tensor:
    """Return a gradient in any form as a tensor of its variable's shape."""
    if isinstance(gradient, Factors):
        return gradient.product()
    return tf.convert_to_tensor(gradient)


def takes_factors(optimizer: tf.keras.optimizers.Optimizer, variable: tf.Variable) -> bool:
    """Return whether an optimizer takes `Factors` as the gradient of a variable."""
    return isinstance(optimizer, OnePassRMSprop) and optimizer.takes_factors(variable)


def products(model: tf.keras.Model) -> list[tuple[tf.keras.layers.Dense, int]]:
    """Return the dense layers that compute one product, each with its number of rows.

    This is the number of rows that the layer receives for one row of the model.

    They are layers of a chain or of a functional model. Each is called once, with an input (rows,
    in) whose rows are a known multiple of the model's. The list is empty for a model of another
    class, which may compute anything.
    """
    if type(model) not in (tf.keras.Sequential, _Functional) or not model.inputs:
        return []
    layers = [layer for layer in model.layers if _is_plain_dense(layer)]
    shapes: dict[int, list[tf.TensorShape]] = {id(layer): [] for layer in layers}

    def note(layer: tf.keras.layers.Dense, values: tf.Tensor) -> tf.Tensor:
        shapes[id(layer)].append(values.shape)
        return type(layer).call(layer, values)

    one_row = [tf.TensorSpec((1, *each.shape[1:]), each.dtype) for each in model.inputs]

    @as_graph(input_signature=one_row)
    def traced(*inputs):
        with _called_as(note, layers):
            return model(given(inputs), training=True)

    traced.get_concrete_function()
    once = [(layer, *shapes[id(layer)]) for layer in layers if len(shapes[id(layer)]) == 1]
    return [(layer, shape[0]) for layer, shape in once if shape.rank == 2 and shape[0]]


def _is_plain_dense(layer: tf.keras.layers.Layer) -> bool:
    """Return whether a layer computes activation(rows @ kernel + bias), and nothing else.

    `forward` computes such a layer itself. It would leave out an activity regulariser, which only a
    call of the layer applies. The gradient of a regularised kernel is no product of two factors.
    """
    return (
        type(layer) is tf.keras.layers.Dense
        and layer.use_bias
        and layer.trainable
        and layer.activity_regularizer is None
        and layer.kernel_regularizer is None
    )


@contextmanager
def _called_as(
    call: Callable[[tf.keras.layers.Dense, tf.Tensor], tf.Tensor],
    layers: Collection[tf.keras.layers.Dense],
) -> Iterator[None]:
    """Let layers compute a function of the layer and its input in place of their own."""
    for layer in layers:
        layer.call = partial(call, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.call


def forward(
    model: tf.keras.Model, inputs: Any, methods: Mapping[tf.keras.layers.Dense, Method]
) -> tuple[tf.Tensor, dict]:
    """Return the output of a model in training, and what the gradients of some layers need.

    `inputs` are as the model is called with. `methods` are how some layers of `products` are
    computed. The second result has the key `kernel.ref()` for each of these layers. Its values are
    the function from the gradient of the layer's output before the activation to the factors, and
    this output.
    """
    recorded = {}

    def record(layer: tf.keras.layers.Dense, values: tf.Tensor) -> tf.Tensor:
        product, factors_of = methods[layer](layer, values)
        sums = tf.nn.bias_add(product, layer.bias)
        recorded[layer.kernel.ref()] = factors_of, sums
        return layer.activation(sums)

    with _called_as(record, methods):
        return model(inputs, training=True), recorded


def gradients(
    tape: tf.GradientTape, target: tf.Tensor, variables: Sequence[tf.Variable], recorded: dict
) -> list[tf.Tensor | tf.IndexedSlices | Factors]:
    """Return the gradient of each variable. A kernel in `recorded` gets `Factors`.

    `recorded` is what `forward` returned. If the target depends on such a kernel in another way
    too, for example through `add_loss`, a tensor is returned for it: the product of the factors
    plus the gradient of the other uses. It is `Unavailable` for a kernel whose factors are
    exchanged through shared memory.
    """
    outputs = {kernel: output for kernel, (_, output) in recorded.items()}
    taped, output_gradients = tape.gradient(target, (list(variables), outputs))

    def combine(variable: tf.Variable, taped: tf.Tensor | tf.IndexedSlices | None):
        if variable.ref() not in recorded:
            return taped
        factors_of, _ = recorded[variable.ref()]
        factors = factors_of(output_gradients[variable.ref()])
        if taped is None:
            return factors
        if isinstance(factors, InMemory):
            raise Unavailable(
                f"the model uses the kernel {variable.name} twice; "
                "use `dense_exchange` `allreduce` or `factors`"
            )
        return factors.product() + tf.convert_to_tensor(taped)

    return [combine(variable, each) for variable, each in zip(variables, taped, strict=True)]
