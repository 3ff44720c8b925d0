"""Memory that training takes: a lower bound, and the refusal of a run that cannot fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from escala.core import readable

if TYPE_CHECKING:
    import tensorflow as tf

    from escala.strategies import Strategy

#: Bytes of a process that has imported TensorFlow and holds no model yet: its own memory, without
#: the pages of libraries, which processes share. docs/decisions/030-fits.md has the measurement.
PROCESS_BYTES = 200 * 2**20


@dataclass(frozen=True)
class Footprint:
    """Bytes that one replica of a model takes.

    Attributes
    ----------
    variables : of the model, trained or not.
    optimizer : of the optimizer's variables.
    gradient : of the largest trained variable. A gradient can be applied and freed before the next
        one is computed, so no more than one need exist.
    row : of the layers' outputs and their gradients for one row; see `peak`.
    """

    variables: int
    optimizer: int
    gradient: int
    row: int

    @classmethod
    def of(cls, model: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer) -> Footprint:
        """Return the footprint of a built model with its built optimizer."""
        return cls(
            sum(map(_bytes, model.variables)),
            sum(map(_bytes, optimizer.variables)),
            max(map(_bytes, model.trainable_variables), default=0),
            peak([_row_bytes(tensor) for tensor in _kept_outputs(model)]),
        )

    def needed_bytes(self, rows: int) -> int:
        """Return the least memory that one replica takes for a step over some rows."""
        return self.variables + self.optimizer + self.gradient + rows * self.row


def peak(outputs: Sequence[int]) -> int:
    """Return the largest memory that a forward and a backward pass need, in bytes.

    The forward pass keeps the outputs of all layers. The backward pass goes from the last layer to
    the first, and frees them. When it has come to a layer, it needs the outputs up to this layer,
    the gradient of this output, and that of the output before. This is exact for a chain whose
    layers need nothing else (Chen et al. 2016, arXiv 1604.06174, describe what is kept).

    Parameters
    ----------
    outputs : bytes of each layer's output, from the first layer to the last.
    """
    kept = accumulate(outputs)
    before = [0, *outputs]
    return max(map(sum, zip(kept, outputs, before, strict=False)), default=0)


def node_bytes(footprint: Footprint, rows: int, replicas: int, processes: int) -> int:
    """Return the least memory that the replicas of one node take.

    It leaves out what differs between strategies and libraries: buffers of an exchange, the scratch
    memory of operations, and copies that they make. Arrays of the reader
    `escala.data.base.Arrays` are mapped files, which the kernel can drop at any time, so they do
    not count either.

    Parameters
    ----------
    rows : of one replica at a time; see `rows_at_once`.
    replicas, processes : on the node.
    """
    return processes * PROCESS_BYTES + replicas * footprint.needed_bytes(rows)


def rows_at_once(batch: int, ranks: int, parts: int, by_speed: bool) -> int:
    """Return the most rows that a rank computes at a time.

    Parameters
    ----------
    batch : rows of a step of all ranks.
    parts : the knob `accumulation`.
    by_speed : whether ranks measure their speed before training, each with a whole batch.
    """
    of_rank = batch if by_speed else math.ceil(batch / ranks)
    return math.ceil(of_rank / parts)


def require(
    model: tf.keras.Model,
    optimizer: tf.keras.optimizers.Optimizer,
    request: Mapping[str, Any],
    strategy: Strategy,
) -> None:
    """Refuse a run that needs more memory than its node had available before it started.

    All ranks of a node compare the same numbers. A model on a GPU is not checked.

    Parameters
    ----------
    request : the run's plan (`escala.record.plan`).

    Raises
    ------
    MemoryError : with the memory needed and available, and the remedies.
    """
    place = strategy.place
    if place.memory is None or _on_gpu(model):
        return
    rows = rows_at_once(
        min(request["global_batch"], request["train_rows"]),
        request["ranks"],
        request["knobs"]["accumulation"],
        strategy.by_speed,
    )
    replicas = place.processes_per_node * len(place.ranks)
    footprint = Footprint.of(model, optimizer)
    needed = node_bytes(footprint, rows, replicas, place.processes_per_node)
    if needed > place.memory:
        raise MemoryError(shortage(needed, place.memory, rows))


def shortage(needed: float, available: float, rows: int) -> str:
    """Return why a run does not fit into memory, and the remedies."""
    return (
        f"needs at least {readable.size(needed)} of memory on a node, with {rows} rows of a rank "
        f"at a time, and {readable.size(available)} are available. Remedy: a smaller batch, a "
        "larger `accumulation`, fewer processes on a node, or in SLURM a larger `memory_gib`"
    )


def _on_gpu(model: tf.keras.Model) -> bool:
    return any("GPU" in variable.device for variable in model.variables)


def _bytes(variable: tf.Variable) -> int:
    return math.prod(variable.shape) * variable.dtype.size


def _kept_outputs(model: tf.keras.Model) -> Iterator[Any]:
    """Yield the outputs that layers keep, as Keras describes them; none of a subclassed model.

    Layers that give another view of their input, or can replace it by their output, keep none.
    """
    from tensorflow.keras import Model, layers

    replacing = layers.InputLayer, layers.Flatten, layers.Reshape, layers.ReLU, layers.Add
    for layer in model.layers:
        if isinstance(layer, Model):
            yield from _kept_outputs(layer)
        elif not isinstance(layer, (*replacing, layers.Activation)):
            for node in layer.inbound_nodes:
                outputs = node.outputs
                yield from outputs if isinstance(outputs, (list, tuple)) else [outputs]


def _row_bytes(tensor) -> int:
    """Return the bytes of a tensor for one row; a size that only the data tell counts as 1."""
    return math.prod(size or 1 for size in tensor.shape[1:]) * tensor.dtype.size
