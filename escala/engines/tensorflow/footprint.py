"""The memory that a Keras model takes while it trains: a lower bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from types import ModuleType
from typing import Any

import tensorflow as tf

from escala.data.base import Spec
from escala.engines.base import Footprint
from escala.engines.tensorflow import building
from escala.engines.tensorflow.factors import takes_factors
from escala.engines.tensorflow.shared_memory import SharedKernel


def workload_footprint(
    work: ModuleType,
    specs: Sequence[Spec],
    outputs: tuple[int, ...],
    settings: Mapping,
    knobs: Mapping,
) -> Footprint:
    """Return the footprint of the model of a workload, which is built for it."""
    model = building.build(work, specs, outputs, settings, knobs)
    optimizer = work.optimizer(settings, settings["learning_rate"]["value"], knobs)
    optimizer.build(model.trainable_variables)
    return footprint(model, optimizer)


def footprint(
    model: tf.keras.Model,
    optimizer: tf.keras.optimizers.Optimizer,
    updated: Sequence[tf.Variable] | None = None,
    shared: Sequence[SharedKernel] = (),
) -> Footprint:
    """Return the footprint of a built model with its built optimizer.

    `updated` are the variables that the optimizer updates, by default the trained ones of the
    model, and `shared` are kernels in memory that all replicas of a node share.
    """
    updated = model.trainable_variables if updated is None else updated
    held = {id(variable): variable for variable in (*model.variables, *updated)}
    for each in shared:
        del held[id(each.kernel)], held[id(each.local)]
    whole = [variable for variable in updated if not takes_factors(optimizer, variable)]
    return Footprint(
        sum(map(_bytes, held.values())),
        sum(map(_bytes, optimizer.variables)),
        max(map(_bytes, whole), default=0),
        peak([_row_bytes(tensor) for tensor in _kept_outputs(model)]),
        sum(_bytes(each.kernel) for each in shared),
    )


def peak(outputs: Sequence[int]) -> int:
    """Return the largest memory that a forward and a backward pass need, in bytes.

    The forward pass keeps the `outputs` of all layers, in bytes from the first layer to the last.
    The backward pass goes from the last layer to the first, and frees them. When it has come to a
    layer, it needs the outputs up to this layer, the gradient of this output, and that of the
    output before. This is exact for a chain whose layers need nothing else (Chen et al. 2016, arXiv
    1604.06174, describe what is kept).
    """
    kept = accumulate(outputs)
    before = [0, *outputs]
    return max(map(sum, zip(kept, outputs, before, strict=False)), default=0)


def _bytes(variable: tf.Variable) -> int:
    return math.prod(variable.shape) * variable.dtype.size


def _kept_outputs(model: tf.keras.Model) -> Iterator[Any]:
    """Yield the outputs that surely are kept, as Keras describes them; a subclassed model has none.

    They are those of layers with weights and of pooling. TensorFlow may compute other layers in
    place, or give another view of their input, and also a TensorFlow function is a layer of Keras.
    """
    for layer in model.layers:
        if isinstance(layer, tf.keras.Model):
            yield from _kept_outputs(layer)
        elif layer.weights or "Pooling" in type(layer).__name__:
            for node in layer.inbound_nodes:
                yield from tf.nest.flatten(node.outputs)


def _row_bytes(tensor) -> int:
    """Return the bytes of a tensor for one row; a size that only the data tell counts as 1.

    A tensor of unknown rank counts as nothing.
    """
    if tensor.shape.rank is None:
        return 0
    return math.prod(size or 1 for size in tensor.shape[1:]) * tensor.dtype.size
