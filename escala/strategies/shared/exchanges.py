"""Choose how the gradient of each large dense layer is exchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf

from escala.strategies import costs
from escala.strategies.shared import shared_memory
from escala.strategies.shared.divided import divisible
from escala.strategies.shared.factors import products, takes_factors
from escala.strategies.shared.recompute import data_bytes, layers_before


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

    `costs.RECOMPUTE` and `costs.SHARED_MEMORY` are for layers that receive one row for each row of
    the model.

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
    if not one_node or (wanted == costs.AUTO and not shared_memory.available()):
        exchanges = [each for each in exchanges if each in costs.BETWEEN_NODES]
    found: dict[tf.keras.layers.Dense, str] = {}
    for layer, of_row in products(model):
        before = layers_before(model, layer, input_of) if costs.RECOMPUTE in exchanges else None
        if before and not _readable(before, found):
            before = None
        product = costs.Product(
            *layer.kernel.shape,
            of_row * rows,
            layer.kernel.dtype.size,
            before and data_bytes(before),
        )
        possible = [e for e in exchanges if _possible(e, optimizer, layer, of_row, product, ranks)]
        by_time = wanted == costs.AUTO
        found[layer] = costs.fastest(possible, product, ranks, rates) if by_time else possible[-1]
    return found


def _readable(before: tf.keras.Model, found: Mapping[tf.keras.layers.Dense, str]) -> bool:
    """Return whether a rank holds the kernels of some layers as they are in a step."""
    return not any(
        found.get(layer) in (costs.IN_PARTS, costs.SHARED_MEMORY) for layer in before.layers
    )


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
    of_row: int,
    product: costs.Product,
    ranks: int,
) -> bool:
    """Return whether a layer can have an exchange, and whether it saves enough bytes.

    Parameters
    ----------
    of_row : rows that the layer receives for one row of the model.
    """
    if exchange == costs.ALLREDUCE:
        return True
    if exchange in costs.OF_OWN_ROWS and not divisible(optimizer, layer, ranks):
        return False
    if exchange in costs.OF_ONE_ROW and of_row > 1:
        return False
    if exchange == costs.SHARED_MEMORY and (
        {layer.kernel.dtype.name, layer.compute_dtype} != {"float32"}
        or "GPU" in layer.kernel.device
    ):
        return False
    received = (costs.received_bytes(e, product, ranks) for e in (costs.ALLREDUCE, exchange))
    allreduced, exchanged = received
    return allreduced - exchanged > costs.MIN_SAVED_BYTES
