"""Compute the input of a dense layer for the rows of all ranks, in place of exchanging it.

The gradient of a dense layer's kernel needs the layer's input for the rows of all ranks
(`escala.strategies.shared.factors`). The layers before it have equal weights on all ranks. So a
rank can compute this input by itself, from the rows of data that the others train on. These are
often far fewer bytes. A rank then receives these data, and the gradient of the layer's output.

Every rank computes this for the rows of all ranks at once, its own included. So all ranks multiply
the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from escala.strategies.base import Strategy
from escala.strategies.shared.divided import LAYER
from escala.strategies.shared.factors import Exchanged, Factors, as_factors
from escala.workloads.models import given

#: Keras's layers that compute each row for itself, without chance or variables that they change.
#: Another one says so by an attribute `row_wise`, see `escala.workloads`.
ROW_WISE = (
    "InputLayer", "Embedding", "Conv1D", "Conv2D", "Conv3D", "MaxPool1D", "MaxPool2D", "MaxPool3D",
    "AveragePooling1D", "AveragePooling2D", "AveragePooling3D", "GlobalMaxPool1D",
    "GlobalMaxPool2D", "Dense", "Activation", "ReLU", "LeakyReLU", "Flatten", "Reshape", "Permute",
    "ZeroPadding1D", "ZeroPadding2D", "Concatenate", "Add",
)  # fmt: skip


def layers_before(
    model: tf.keras.Model,
    layer: tf.keras.layers.Layer,
    faster: Callable[[tf.keras.Model, tf.keras.layers.Layer], tf.keras.Model | None] | None = None,
) -> tf.keras.Model | None:
    """Return the part of a model that computes a layer's input, if ranks may compute it again.

    Parameters
    ----------
    model : a chain or a functional model.
    layer : one of its layers, which is called once.
    faster : the function `input_of` of the workload, if it has one.

    Returns
    -------
    None if a layer before it computes rows together or by chance, or is of an unknown class.
    """
    if faster and (before := faster(model, layer)) is not None:
        return before
    before = tf.keras.Model(model.inputs, layer.input)
    known = [getattr(tf.keras.layers, name) for name in ROW_WISE]
    if all(type(each) in known or getattr(each, "row_wise", False) for each in before.layers):
        return before
    return None


def data_bytes(
    model: tf.keras.Model,
    layer: tf.keras.layers.Dense,
    rows: int,
    faster: Callable | None = None,
) -> float | None:
    """Return the bytes of a model's inputs for one row that a layer receives.

    Parameters
    ----------
    rows : that the layer receives for one row of the model.
    model, layer, faster : as of `layers_before`.

    Returns
    -------
    None if ranks cannot compute the layer's input again, or if a row may have any length.
    """
    if layers_before(model, layer, faster) is None:
        return None
    shapes = [each.shape[1:] for each in model.inputs]
    if not all(shape.is_fully_defined() for shape in map(tf.TensorShape, shapes)):
        return None
    return sum(math.prod(each.shape[1:]) * each.dtype.size for each in model.inputs) / rows


def computed(
    name: str,
    before: tf.keras.Model,
    strategy: Strategy,
    input_gradient: Callable,
    layer: tf.keras.layers.Dense,
    values: tf.Tensor,
    inputs: Any,
):
    """Compute a layer's product for this rank's rows; its factors are those of all ranks' rows.

    Every rank calls it. A rank computes the input for all rows when it knows all its gradients, so
    that their exchange goes on meanwhile.

    Parameters
    ----------
    name : of the kernel in exchanges, see `escala.strategies.base.tensor_names`.
    before : as `layers_before` returns it.
    input_gradient : as in `escala.strategies.shared.factors.as_factors`.
    layer, values, inputs : as a `escala.strategies.shared.factors.Method` takes them.

    Returns
    -------
    As a `Method` does.
    """
    of_all = [
        strategy.gathered(each, f"{LAYER}{name}/data{number}")
        for number, each in enumerate(tf.nest.flatten(inputs))
    ]
    product, _ = as_factors(Factors, input_gradient, layer, values, inputs)

    def factors_of(output_gradients: tf.Tensor, others: Sequence[tf.Tensor]) -> Exchanged:
        gathered = strategy.gathered(output_gradients, f"{LAYER}{name}/output_gradients")
        with tf.control_dependencies(others):
            data = [tf.identity(each) for each in of_all]
        return Exchanged(before(given(data), training=True), gathered)

    return product, factors_of
