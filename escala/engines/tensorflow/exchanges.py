"""Select how the gradient of each large dense layer is exchanged, and compute the layer for it.

The gradient of a dense layer's kernel needs the layer's input for the rows of all ranks
(`escala.engines.tensorflow.factors`). With `recompute` a rank computes this input by itself: the
layers before it have equal weights on all ranks, and the rows of data that the others train on are
often far fewer bytes. Every rank computes this for the rows of all ranks at once, its own included.
So on equal processors all ranks multiply the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from escala.engines import costs
from escala.engines.tensorflow import factors
from escala.engines.tensorflow.factors import Exchanged, Factors, as_factors
from escala.engines.tensorflow.lookup import STEM, Lookup, tabulable
from escala.engines.tensorflow.ranks import Ranks, tensor_names
from escala.engines.tensorflow.shared_memory import can_be_shared
from escala.workloads.models import given

Layer = tf.keras.layers.Dense
Optimizer = tf.keras.optimizers.Optimizer


def exchanges(
    model: tf.keras.Model, optimizer: Optimizer, plan: Mapping[str, Any], ranks: Ranks
) -> dict[Layer, str]:
    """Return the exchange of each dense layer that need not be summed by allreduce.

    It is empty where the ranks sum all gradients. The gradients of a single rank stay factors where
    the optimizer takes them.
    """
    knobs, total = plan["knobs"], plan["ranks"]
    if not ranks.gathers or knobs["accumulation"] > 1:
        return {}
    if total == 1:
        return local_factors(model, optimizer)
    if knobs["dense_exchange"] == costs.ALLREDUCE:
        return {}
    rows = min(plan["global_batch"], plan["train_rows"])
    one_node = ranks.place.nodes == 1 and ranks.place.processes == total
    return selected(model, optimizer, knobs["dense_exchange"], rows, total, one_node)


def local_factors(model: tf.keras.Model, optimizer: Optimizer) -> dict[Layer, str]:
    """Return `costs.FACTORS` for each dense layer whose kernel the optimizer updates by factors.

    A single rank exchanges nothing: its own factors are those of all rows.
    """
    if not any(factors.takes_factors(optimizer, each) for each in model.trainable_variables):
        return {}
    return {
        layer: costs.FACTORS
        for layer, _ in factors.products(model)
        if factors.takes_factors(optimizer, layer.kernel)
    }


def selected(
    model: tf.keras.Model,
    optimizer: Optimizer,
    wanted: str,
    rows: int,
    ranks: int,
    one_node: bool,
) -> dict[Layer, str]:
    """Return the exchange of each dense layer that computes one product.

    `wanted` is one of `costs.EXCHANGES`. Layers that cannot have it, and those with which it does
    not save `costs.MIN_SAVED_BYTES`, are summed by allreduce. `costs.RECOMPUTE` and
    `costs.SHARED_MEMORY` need layers with inputs of shape (batch, in): one row for each row of the
    model. `rows` is the global batch, and `one_node` whether all ranks are on one node, each in its
    own process.
    """
    if not one_node and wanted not in costs.BETWEEN_NODES:
        wanted = costs.ALLREDUCE
    found: dict[Layer, str] = {}
    for layer, rows_of_one in factors.products(model):
        before = layers_before(model, layer) if wanted == costs.RECOMPUTE else None
        product = costs.Product(
            *layer.kernel.shape,
            rows_of_one * rows,
            layer.kernel.dtype.size,
            before and data_bytes(before),
        )
        alone = wanted in costs.ROW_BY_ROW and rows_of_one > 1
        unfit = wanted == costs.SHARED_MEMORY and not can_be_shared(optimizer, layer, ranks)
        summed, received = (
            costs.received_bytes(each, product, ranks) for each in (costs.ALLREDUCE, wanted)
        )
        saves = summed - received > costs.MIN_SAVED_BYTES
        found[layer] = wanted if saves and not (alone or unfit) else costs.ALLREDUCE
    return found


def methods(
    model: tf.keras.Model, exchanges: Mapping[Layer, str], ranks: Ranks
) -> dict[Layer, factors.Method]:
    """Return how each layer is computed whose gradient is not summed by allreduce."""
    variables = model.trainable_variables
    names = {v.ref(): n for v, n in zip(variables, tensor_names(variables), strict=True)}
    kinds = {costs.FACTORS: factors.Factors, costs.SHARED_MEMORY: factors.InMemory}

    def method(layer: Layer, exchange: str) -> factors.Method:
        if exchange == costs.RECOMPUTE:
            name, before = names[layer.kernel.ref()], layers_before(model, layer)
            return partial(computed, name, before, ranks)
        return partial(factors.as_factors, kinds[exchange])

    return {
        layer: method(layer, exchange)
        for layer, exchange in exchanges.items()
        if exchange != costs.ALLREDUCE
    }


#: The prefix of the names of what a layer exchanges; the variable's name follows.
LAYER = "layer/"

#: Keras's layers that compute each row for itself, without chance or variables that they change.
ROW_WISE = (
    "InputLayer", "Embedding", "Conv1D", "Conv2D", "Conv3D", "MaxPool1D", "MaxPool2D", "MaxPool3D",
    "AveragePooling1D", "AveragePooling2D", "AveragePooling3D", "GlobalMaxPool1D",
    "GlobalMaxPool2D", "Dense", "Activation", "ReLU", "LeakyReLU", "Flatten", "Reshape", "Permute",
    "ZeroPadding1D", "ZeroPadding2D", "Add",
)  # fmt: skip
#: Types that Horovod gathers (`HorovodAllgather` in `horovod/tensorflow/mpi_ops.cc`, 0.28).
GATHERED = (
    tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64,
    tf.bool,
)  # fmt: skip


def layers_before(model: tf.keras.Model, layer: tf.keras.layers.Layer) -> tf.keras.Model | None:
    """Return the part of a model that computes a layer's input, if ranks may compute it again.

    The model is a chain or a functional one, and calls the layer once. Where a chain begins with
    layers that lookups can replace, the part has these: the same variables, and the same values to
    rounding, in less time. It is None if a layer before this one computes rows together or by
    chance, or is of an unknown class.
    """
    try:
        before = tf.keras.Model(model.inputs, layer.input)
    except (AttributeError, ValueError):
        # The layer is part of another model, too.
        return None
    known = [getattr(tf.keras.layers, name) for name in ROW_WISE]
    for each in before.layers:
        known_kind = type(each) in known and _is_of_keras(getattr(each, "activation", None))
        if not (known_kind or isinstance(each, Lookup)):
            return None
    if isinstance(model, tf.keras.Sequential):
        chain = model.layers[: model.layers.index(layer)]
        if tabulable(chain[:STEM]):
            inputs = tf.keras.Input(model.input_shape[1:], dtype=model.input.dtype)
            return tf.keras.Sequential([inputs, Lookup(chain[:STEM]), *chain[STEM:]])
    return before


def _is_of_keras(activation: Callable | None) -> bool:
    """Return whether an activation is none, or one of Keras: another one may be any function."""
    name = getattr(activation, "__name__", "")
    return activation is None or getattr(tf.keras.activations, name, None) is activation


def data_bytes(before: tf.keras.Model) -> float | None:
    """Return the bytes of the inputs of some layers for one row.

    They are None if a row may have any length, or a type that Horovod does not gather.
    """
    if not all(tf.TensorShape(each.shape[1:]).is_fully_defined() for each in before.inputs):
        return None
    if not all(each.dtype in GATHERED for each in before.inputs):
        return None
    return sum(math.prod(each.shape[1:]) * each.dtype.size for each in before.inputs)


def computed(
    name: str,
    before: tf.keras.Model,
    ranks: Ranks,
    layer: tf.keras.layers.Dense,
    values: tf.Tensor,
    inputs: Any,
):
    """Compute a layer's product for this rank's rows; its factors are those of all ranks' rows.

    With a name and layers it is a `escala.engines.tensorflow.factors.Method`, which
    every rank calls. A rank computes the input for all rows when it knows all its gradients, so
    that their exchange goes on meanwhile. `name` is that of the kernel in exchanges
    (`escala.engines.tensorflow.ranks.tensor_names`), and `before` what `layers_before` returns.
    """
    all_rows = [
        ranks.gathered(each, f"{LAYER}{name}/data{number}")
        for number, each in enumerate(tf.nest.flatten(inputs))
    ]
    product, _ = as_factors(Factors, layer, values, inputs)

    def factors_of(output_gradients: tf.Tensor, others: Sequence[tf.Tensor]) -> Exchanged:
        gathered = ranks.gathered(output_gradients, f"{LAYER}{name}/output_gradients")
        with tf.control_dependencies(others):
            data = [tf.identity(each) for each in all_rows]
        return Exchanged(before(given(data), training=True), gathered)

    return product, factors_of
