"""Select how the gradient of each large dense layer is exchanged, and compute the layer for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import tensorflow as tf

from escala.engines import costs
from escala.engines.tensorflow import factors
from escala.engines.tensorflow.ranks import Ranks
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
    not save `costs.MIN_SAVED_BYTES`, are summed by allreduce. `costs.SHARED_MEMORY` needs
    layers with inputs of shape (batch, in): one row for each row of the model. `rows` is the global
    batch, and `one_node` whether all ranks are on one node, each in its
    own process.
    """
    if wanted == costs.SHARED_MEMORY and not one_node:
        wanted = costs.ALLREDUCE
    found: dict[Layer, str] = {}
    for layer, rows_of_one in factors.products(model):
        product = costs.Product(*layer.kernel.shape, rows_of_one * rows, layer.kernel.dtype.size)
        unfit = wanted == costs.SHARED_MEMORY and (
            rows_of_one > 1 or not can_be_shared(optimizer, layer, ranks)
        )
        summed, received = (
            costs.received_bytes(each, product, ranks) for each in (costs.ALLREDUCE, wanted)
        )
        saves = summed - received > costs.MIN_SAVED_BYTES
        found[layer] = wanted if saves and not unfit else costs.ALLREDUCE
    return found


def methods(exchanges: Mapping[Layer, str]) -> dict[Layer, factors.Method]:
    """Return how each layer is computed whose gradient is not summed by allreduce."""
    kinds = {costs.FACTORS: factors.Factors, costs.SHARED_MEMORY: factors.InMemory}
    return {
        layer: partial(factors.as_factors, kinds[exchange])
        for layer, exchange in exchanges.items()
        if exchange != costs.ALLREDUCE
    }
