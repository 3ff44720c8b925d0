"""Select how the gradient of each large dense layer is exchanged, and compute the layer for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import tensorflow as tf

from escala.engines import costs
from escala.engines.tensorflow import dense_operations, factors, recompute
from escala.engines.tensorflow.ranks import Ranks, tensor_names
from escala.engines.tensorflow.shared_memory import can_be_shared

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
        before = recompute.layers_before(model, layer) if wanted == costs.RECOMPUTE else None
        product = costs.Product(
            *layer.kernel.shape,
            rows_of_one * rows,
            layer.kernel.dtype.size,
            before and recompute.data_bytes(before),
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
    model: tf.keras.Model, exchanges: Mapping[Layer, str], ranks: Ranks, input_gradient: str
) -> dict[Layer, factors.Method]:
    """Return how each layer is computed whose gradient is not summed by allreduce.

    `input_gradient` is the knob of this name.
    """
    variables = model.trainable_variables
    names = {v.ref(): n for v, n in zip(variables, tensor_names(variables), strict=True)}
    kinds = {costs.FACTORS: factors.Factors, costs.SHARED_MEMORY: factors.InMemory}
    by_knob = {"tensorflow": factors.input_gradient, "operation": dense_operations.input_gradient}

    def method(layer: Layer, exchange: str) -> factors.Method:
        # The operation computes with float32 only.
        is_float32 = layer.compute_dtype == "float32"
        gradient = by_knob[input_gradient if is_float32 else "tensorflow"]
        if exchange == costs.RECOMPUTE:
            name, before = names[layer.kernel.ref()], recompute.layers_before(model, layer)
            return partial(recompute.computed, name, before, ranks, gradient)
        return partial(factors.as_factors, kinds[exchange], gradient)

    return {
        layer: method(layer, exchange)
        for layer, exchange in exchanges.items()
        if exchange != costs.ALLREDUCE
    }
