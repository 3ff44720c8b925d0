"""Select how the gradient of each large dense layer is exchanged."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from escala.strategies import costs
from escala.strategies.shared.factors import products, takes_factors
from escala.strategies.shared.recompute import data_bytes, layers_before
from escala.strategies.shared.shared_memory import can_be_shared


def selected(
    model: tf.keras.Model,
    optimizer: tf.keras.optimizers.Optimizer,
    wanted: str,
    rows: int,
    ranks: int,
    one_node: bool,
    input_of: Callable | None = None,
) -> dict[tf.keras.layers.Dense, str]:
    """Return the exchange of each dense layer that computes one product.

    `costs.RECOMPUTE` and `costs.SHARED_MEMORY` are for layers that receive one row for each row of
    the model.

    Parameters
    ----------
    wanted : one of `costs.EXCHANGES`. Layers that cannot have it, and those with which it does not
        save `costs.MIN_SAVED_BYTES`, are summed by allreduce.
    rows : the global batch.
    one_node : whether all ranks are on one node, each in a process of its own.
    input_of : the function of this name of the workload, if it has one.
    """
    if not one_node and wanted not in costs.BETWEEN_NODES:
        wanted = costs.ALLREDUCE
    found: dict[tf.keras.layers.Dense, str] = {}
    for layer, rows_of_one in products(model):
        before = layers_before(model, layer, input_of) if wanted == costs.RECOMPUTE else None
        product = costs.Product(
            *layer.kernel.shape,
            rows_of_one * rows,
            layer.kernel.dtype.size,
            before and data_bytes(before),
        )
        possible = _possible(wanted, optimizer, layer, rows_of_one, product, ranks)
        found[layer] = wanted if possible else costs.ALLREDUCE
    return found


def of_one_rank(
    model: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer
) -> dict[tf.keras.layers.Dense, str]:
    """Return `costs.FACTORS` for each dense layer whose kernel the optimizer updates by factors.

    A single rank exchanges nothing: its own factors are those of all rows.
    """
    if not any(takes_factors(optimizer, variable) for variable in model.trainable_variables):
        return {}
    return {
        layer: costs.FACTORS
        for layer, _ in products(model)
        if takes_factors(optimizer, layer.kernel)
    }


def _possible(
    exchange: str,
    optimizer: tf.keras.optimizers.Optimizer,
    layer: tf.keras.layers.Dense,
    rows_of_one: int,
    product: costs.Product,
    ranks: int,
) -> bool:
    """Return whether a layer can have an exchange, and whether it saves enough bytes.

    Parameters
    ----------
    rows_of_one : rows that the layer receives for one row of the model.
    """
    if exchange in costs.OF_ONE_ROW and rows_of_one > 1:
        return False
    if exchange == costs.SHARED_MEMORY and not can_be_shared(optimizer, layer, ranks):
        return False
    received = (costs.received_bytes(e, product, ranks) for e in (costs.ALLREDUCE, exchange))
    allreduced, exchanged = received
    return allreduced - exchanged > costs.MIN_SAVED_BYTES
