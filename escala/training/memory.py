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
    from escala.training.state import State

#: Bytes of a process that has imported TensorFlow and holds no model yet: its own memory, without
#: the pages of libraries, which processes share. docs/decisions/030-fits.md has the measurement.
PROCESS_BYTES = 200 * 2**20


#: What to do about a run that takes too much memory.
REMEDIES = (
    "a smaller batch, a larger `accumulation`, fewer processes on a node, or in SLURM a larger "
    "`memory_gib`"
)


@dataclass(frozen=True)
class Footprint:
    """Bytes that one replica of a model takes.

    Attributes
    ----------
    variables : of the model, trained or not, and parts of them that the optimizer updates.
    optimizer : of the optimizer's variables.
    gradient : of the largest trained variable whose gradient the optimizer needs as a whole. A
        gradient can be applied and freed before the next one is computed, so no more than one need
        exist.
    row : of the layers' outputs and their gradients for one row; see `peak`.
    """

    variables: int
    optimizer: int
    gradient: int
    row: int

    @classmethod
    def of(
        cls,
        model: tf.keras.Model,
        optimizer: tf.keras.optimizers.Optimizer,
        updated: Sequence[tf.Variable] | None = None,
        shared: Sequence[tf.Variable] = (),
    ) -> Footprint:
        """Return the footprint of a built model with its built optimizer.

        Parameters
        ----------
        updated : variables that the optimizer updates; absent, the trained ones of the model.
        shared : variables in memory that all replicas of a node share; they are left out.
        """
        from escala.strategies.shared.factors import takes_factors

        updated = model.trainable_variables if updated is None else updated
        held = {id(variable): variable for variable in (*model.variables, *updated)}
        for variable in shared:
            del held[id(variable)]
        whole = [variable for variable in updated if not takes_factors(optimizer, variable)]
        return cls(
            sum(map(_bytes, held.values())),
            sum(map(_bytes, optimizer.variables)),
            max(map(_bytes, whole), default=0),
            peak([_row_bytes(tensor) for tensor in _kept_outputs(model)]),
        )


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


def node_bytes(
    footprint: Footprint,
    rows: Sequence[int],
    processes: int,
    one_copy: bool = False,
    shared: int = 0,
) -> int:
    """Return the least memory that the replicas of one node take.

    It leaves out what differs between strategies and libraries: buffers of an exchange, the scratch
    memory of operations, and copies that they make. Arrays of the reader
    `escala.data.base.Arrays` are mapped files, which the kernel can drop at any time, so they do
    not count either.

    Parameters
    ----------
    rows : of each replica on the node at a time; see `rows_of_ranks`.
    processes : that train, on the node.
    one_copy : whether replicas share one copy of the variables, which a server holds. Two more
        processes, the server and the one that hands out steps, then run on the node.
    shared : bytes of variables that all replicas share.
    """
    copies, others = (1, 2) if one_copy else (len(rows), 0)
    return (
        (processes + others) * PROCESS_BYTES
        + shared
        + copies * (footprint.variables + footprint.optimizer)
        + len(rows) * footprint.gradient
        + sum(rows) * footprint.row
    )


def rows_of_ranks(batch: int, ranks: int, parts: int, by_speed: bool) -> list[int]:
    """Return the rows that each rank computes at a time, from the most to the fewest.

    Parameters
    ----------
    batch : rows of a step of all ranks.
    parts : the knob `accumulation`.
    by_speed : whether ranks measure their speed before training, each with a whole batch. Stated
        shares are not looked at: the rank with the most rows may have more than this.
    """
    whole = [batch] * ranks if by_speed else [(batch + n) // ranks for n in reversed(range(ranks))]
    return [math.ceil(rows / parts) for rows in whole]


def require(
    model: tf.keras.Model,
    optimizer: tf.keras.optimizers.Optimizer,
    state: State,
    request: Mapping[str, Any],
    strategy: Strategy,
) -> None:
    """Refuse a run that needs more memory than its node had available before it started.

    All ranks of a node compare the same numbers. A model on a GPU is not checked.

    Parameters
    ----------
    state : of the model and the optimizer.
    request : the run's plan (`escala.record.plan`).

    Raises
    ------
    MemoryError : with the memory needed and available, and the remedies.
    """
    place = strategy.place
    if place.memory is None or _on_gpu(model):
        return
    rows = rows_of_ranks(
        min(request["global_batch"], request["train_rows"]),
        request["ranks"],
        request["knobs"]["accumulation"],
        strategy.by_speed and request["knobs"]["shares"] is None,
    )
    replicas = place.processes_per_node * len(place.ranks)
    rows = rows[place.node * replicas :][:replicas]
    shared = [variable for each in state.shared for variable in (each.kernel, each.local)]
    footprint = Footprint.of(model, optimizer, state.updated, shared)
    needed = node_bytes(
        footprint,
        rows,
        place.processes_per_node,
        strategy.asynchronous,
        sum(_bytes(each.kernel) for each in state.shared),
    )
    if needed > place.memory:
        raise MemoryError(shortage(needed, place.memory, max(rows)))


def shortage(needed: float, available: float, rows: int) -> str:
    """Return why a run does not fit into memory, and the remedies."""
    return (
        f"needs at least {readable.size(needed)} of memory on a node, with {rows} rows of a rank "
        f"at a time, and {readable.size(available)} are available. Remedy: {REMEDIES}"
    )


def _on_gpu(model: tf.keras.Model) -> bool:
    return any("GPU" in variable.device for variable in model.variables)


def _bytes(variable: tf.Variable) -> int:
    return math.prod(variable.shape) * variable.dtype.size


def _kept_outputs(model: tf.keras.Model) -> Iterator[Any]:
    """Yield the outputs that surely are kept, as Keras describes them; none of a subclassed model.

    They are those of layers with weights and of pooling. TensorFlow may compute other layers in
    place, or give another view of their input, and also a TensorFlow function is a layer of Keras.
    """
    from tensorflow import nest
    from tensorflow.keras import Model

    for layer in model.layers:
        if isinstance(layer, Model):
            yield from _kept_outputs(layer)
        elif layer.weights or "Pooling" in type(layer).__name__:
            for node in layer.inbound_nodes:
                yield from nest.flatten(node.outputs)


def _row_bytes(tensor) -> int:
    """Return the bytes of a tensor for one row; a size that only the data tell counts as 1.

    A tensor of unknown rank counts as nothing.
    """
    if tensor.shape.rank is None:
        return 0
    return math.prod(size or 1 for size in tensor.shape[1:]) * tensor.dtype.size
