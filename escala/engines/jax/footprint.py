"""The memory that a model takes while it trains: a lower bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import ModuleType

import jax

from escala.data.base import Spec
from escala.engines.base import Footprint
from escala.engines.jax import models

#: What is kept for so many rows is compared, to find what is kept for one.
_ROWS = (2, 3)


def workload_footprint(
    work: ModuleType,
    specs: Sequence[Spec],
    outputs: tuple[int, ...],
    settings: Mapping,
    knobs: Mapping,
) -> Footprint:
    """Return the footprint of the model of a workload, which is traced for it."""
    optimizer = work.optimizer(settings, settings["learning_rate"]["value"], knobs)
    return footprint(models.build(work, specs, outputs, settings, knobs), optimizer, specs)


def footprint(model: models.Model, optimizer: models.Optimizer, specs: Sequence[Spec]) -> Footprint:
    """Return the footprint of a model on the processor."""
    variables = 4 * parameters(model)
    few, more = (_kept(model, specs, rows) for rows in _ROWS)
    # All gradients are there when the optimizer begins.
    return Footprint(variables, optimizer.slots * variables, variables, max(0, more - few))


def parameters(model: models.Model) -> int:
    """Return the number of numbers in all arrays."""
    return sum(math.prod(each.shape) for each in model.arrays)


def _kept(model: models.Model, specs: Sequence[Spec], rows: int) -> int:
    """Return the bytes that a forward pass of some rows keeps for the backward pass."""

    def backward(arrays, *inputs):
        return jax.vjp(lambda arrays: model.outputs(arrays, *inputs), arrays)[1]

    given = [jax.ShapeDtypeStruct((rows, *spec.shape), spec.dtype) for spec in specs]
    kept = jax.tree.leaves(jax.eval_shape(backward, models.described(model), *given))
    return sum(each.size * each.dtype.itemsize for each in kept)
