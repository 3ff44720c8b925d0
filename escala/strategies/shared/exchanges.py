"""Choose how the gradient of each large dense layer is exchanged."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from escala.strategies import costs
from escala.strategies.shared.divided import divisible
from escala.strategies.shared.factors import products, takes_factors
from escala.strategies.shared.recompute import data_bytes


def chosen(
    model: tf.keras.Model,
    optimizer: tf.keras.optimizers.Optimizer,
    wanted: str,
    rows: int,
    ranks: int,
    rates: costs.Rates,
    one_node: bool,
    input_of: Callable | None = None,
) -> dict[tf.keras.layers.Dense, str]:
    """Return the exchange of each dense layer that computes one product.

    Parameters
    ----------
    wanted : one of `costs.EXCHANGES`. Layers that cannot have it, and those with which it does not
        save `costs.MIN_SAVED_BYTES`, are summed by allreduce. With `costs.AUTO` each layer gets the
        exchange that takes the least time by the formulas.
    rows : the global batch.
    one_node : whether all ranks are on one node, each in a process of its own.
    input_of : the function of this name of the workload, if it has one.
    """
    exchanges = costs.EXCHANGES if wanted == costs.AUTO else (costs.ALLREDUCE, wanted)

    def of_layer(layer: tf.keras.layers.Dense, product: costs.Product) -> str:
        possible = [
            each
            for each in exchanges
            if _possible(each, optimizer, layer, product, ranks)
            and (one_node or each in costs.BETWEEN_NODES)
        ]
        if wanted == costs.AUTO:
            return costs.fastest(possible, product, ranks, rates)
        return possible[-1]

    return {
        layer: of_layer(
            layer,
            costs.Product(
                *layer.kernel.shape,
                each * rows,
                layer.kernel.dtype.size,
                data_bytes(model, layer, each, input_of),
            ),
        )
        for layer, each in products(model)
    }


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
    product: costs.Product,
    ranks: int,
) -> bool:
    """Return whether a layer can have an exchange, and whether it saves enough bytes."""
    if exchange == costs.ALLREDUCE:
        return True
    if exchange in costs.OF_OWN_ROWS and not divisible(optimizer, layer, ranks):
        return False
    if exchange == costs.SHARED_MEMORY and layer.kernel.dtype != tf.float32:
        return False
    received = (costs.received_bytes(e, product, ranks) for e in (costs.ALLREDUCE, exchange))
    allreduced, exchanged = received
    return allreduced - exchanged > costs.MIN_SAVED_BYTES
