"""List what ranks exchange in a step.

| gradient | exchanged by | bytes, as in `collectives.algorithm` |
|---|---|---|
| dense | allreduce | numbers · item |
| as two factors | allgather | rows · in · item |
| | allgather | rows · out · item |
| shared-memory | copies within a node | |
| recompute | allgather | rows · data |
| | allgather | rows · out · item |
| sparse | allgather | rows · width · item |
| | allgather | rows · 4, the indices |

Rows are those of one of n ranks. `strategies.costs` describes the exchanges of a dense layer.
`fp16` halves the bytes of a dense gradient and of the larger factor. With accumulation there are no
factors and nothing is divided among ranks, all gradients are dense, and they are exchanged once a
step.

Through shared memory, a rank writes both factors of its rows, and reads those of all rows that
belong to its rows of the kernel. The other gradients are summed there too, if they are few bytes.
Nothing hides these copies. On several nodes, ranks sum instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from escala.analysis.cost_model.calibration import Gradient
from escala.analysis.cost_model.collectives import ALLGATHER, ALLREDUCE
from escala.strategies import costs

#: Keras's `Embedding` casts the numbers that it looks up to int32.
_INDEX_BYTES = 4
_FP16_BYTES = 2


@dataclass(frozen=True)
class Exchange:
    """Settings of the exchange of gradients, as the knobs of these names.

    Attributes
    ----------
    dense : of large dense layers, one of `costs.EXCHANGES`.
    fusion_bytes : largest size of tensors that are exchanged as one; 0 fuses none. Horovod's
        default is 128 MiB (`horovod/common/operations.cc`, version 0.28).
    cycle_seconds : between two moments at which Horovod looks for tensors. Its default is 1 ms (in
        the same file); without effect on TensorFlow's collectives, which have no cycle.
    """

    dense: str = costs.ALLREDUCE
    fp16: bool = False
    sparse_as_dense: bool = True
    accumulation: int = 1
    fusion_bytes: float = 128 * 2**20
    cycle_seconds: float = 1e-3

    def between(self, nodes: int) -> Exchange:
        """Return the exchange that ranks on several nodes have with the same settings."""
        possible = nodes == 1 or self.dense in costs.BETWEEN_NODES
        return self if possible else replace(self, dense=costs.ALLREDUCE)


@dataclass(frozen=True)
class Message:
    """A tensor that is exchanged.

    Attributes
    ----------
    size : bytes, as in `collectives.algorithm`.
    ready : share of a rank's computing after which it is known.
    cast_bytes : bytes that are read and written to convert it, before and after.
    blocking : whether the rank waits for it at once, so that computing hides nothing of it.
    """

    operation: str
    size: float
    ready: float
    cast_bytes: float = 0.0
    blocking: bool = False


def messages(
    gradients: Sequence[Gradient], rows: int, ranks: int, exchange: Exchange
) -> list[Message]:
    """Return what a rank sends in a step, in the order in which it is known.

    Parameters
    ----------
    rows : of a rank.
    """
    if ranks == 1:
        return []
    in_memory = _in_memory(gradients, rows, ranks, exchange)
    listed: list[Message] = []
    for gradient in gradients:
        dense = dense_exchange(gradient, rows, ranks, exchange)
        if gradient in in_memory:
            continue
        if dense in _OF_LAYER:
            listed += _OF_LAYER[dense](gradient, rows, ranks, exchange)
        elif _stays_sparse(gradient, exchange):
            listed += _sparse(gradient, rows)
        else:
            listed.append(_message(ALLREDUCE, gradient.numbers, gradient, exchange.fp16))
    return sorted(listed, key=lambda message: message.ready)


def _message(operation: str, numbers: float, gradient: Gradient, fp16: bool) -> Message:
    if not fp16 or gradient.item_bytes <= _FP16_BYTES:
        return Message(operation, numbers * gradient.item_bytes, gradient.ready)
    cast = 2 * numbers * (gradient.item_bytes + _FP16_BYTES)
    return Message(operation, numbers * _FP16_BYTES, gradient.ready, cast)


def _factors(gradient: Gradient, rows: int, ranks: int, exchange: Exchange) -> list[Message]:
    inputs, outputs = gradient.shape
    of_layer = rows * gradient.factor_rows
    return [
        _message(ALLGATHER, of_layer * inputs, gradient, exchange.fp16),
        _message(ALLGATHER, of_layer * outputs, gradient, False),
    ]


def _recomputed(gradient: Gradient, rows: int, ranks: int, exchange: Exchange) -> list[Message]:
    of_layer = rows * gradient.factor_rows
    return [
        # The data are known at the beginning of a step.
        Message(ALLGATHER, of_layer * gradient.data_bytes, 0.0),
        _message(ALLGATHER, of_layer * gradient.shape[1], gradient, False),
    ]


_OF_LAYER = {
    costs.FACTORS: _factors,
    costs.RECOMPUTE: _recomputed,
}


def _stays_sparse(gradient: Gradient, exchange: Exchange) -> bool:
    """Return whether ranks gather the rows of a gradient."""
    known = gradient.sparse_rows is not None
    return known and exchange.accumulation == 1 and not exchange.sparse_as_dense


def _sparse(gradient: Gradient, rows: int) -> list[Message]:
    read = rows * gradient.sparse_rows
    width = gradient.numbers / gradient.shape[0]
    return [
        Message(ALLGATHER, read * width * gradient.item_bytes, gradient.ready),
        Message(ALLGATHER, read * _INDEX_BYTES, gradient.ready),
    ]


def dense_exchange(gradient: Gradient, rows: int, ranks: int, exchange: Exchange) -> str:
    """Return how a gradient is exchanged, one of `costs.EXCHANGES`, as in `strategies.shared`.

    A rank must receive fewer bytes than in an allreduce, by more than `costs.MIN_SAVED_BYTES`.

    Parameters
    ----------
    rows : of a rank.
    """
    wanted = costs.ALLREDUCE if exchange.accumulation > 1 else exchange.dense
    if wanted == costs.ALLREDUCE or not may_have(wanted, gradient):
        return costs.ALLREDUCE
    product = costs.Product(
        *gradient.shape,
        gradient.factor_rows * rows * ranks,
        gradient.item_bytes,
        gradient.data_bytes,
    )
    if wanted == costs.SHARED_MEMORY and product.inputs < ranks:
        return costs.ALLREDUCE
    summed, received = (
        costs.received_bytes(each, product, ranks) for each in (costs.ALLREDUCE, wanted)
    )
    return wanted if summed - received > costs.MIN_SAVED_BYTES else costs.ALLREDUCE


def may_have(exchange: str, gradient: Gradient) -> bool:
    """Return whether a gradient may be exchanged in another way than by allreduce."""
    if exchange in costs.OF_ONE_ROW and gradient.factor_rows != 1:
        return False
    if exchange == costs.SHARED_MEMORY and gradient.item_bytes != costs.SHARED_NUMBER_BYTES:
        return False
    return gradient.factor_rows is not None


def is_factored(gradient: Gradient, rows: int, ranks: int, exchange: Exchange) -> bool:
    """Return whether every rank multiplies the factors of all ranks' rows."""
    used = dense_exchange(gradient, rows, ranks, exchange)
    return used in (costs.FACTORS, costs.RECOMPUTE)


def recomputed(
    gradients: Sequence[Gradient], rows: int, ranks: int, exchange: Exchange
) -> list[Gradient]:
    """Return the gradients for which a rank computes the input of a layer again, for all rows.

    Parameters
    ----------
    rows : of a rank.
    """
    return [
        each for each in gradients if dense_exchange(each, rows, ranks, exchange) == costs.RECOMPUTE
    ]


def updated_share(
    gradients: Sequence[Gradient], rows: int, ranks: int, exchange: Exchange
) -> float:
    """Return the weights that a rank updates, divided by those of the model.

    Parameters
    ----------
    rows : of a rank.
    """
    whole = sum(gradient.numbers for gradient in gradients)
    divided = sum(
        gradient.numbers
        for gradient in gradients
        if dense_exchange(gradient, rows, ranks, exchange) == costs.SHARED_MEMORY
    )
    return 1 - divided / whole * (1 - 1 / ranks) if whole else 1.0


def _in_memory(
    gradients: Sequence[Gradient], rows: int, ranks: int, exchange: Exchange
) -> list[Gradient]:
    """Return the gradients that ranks exchange through memory: factors, and sums of few bytes."""
    factored = [
        each
        for each in gradients
        if dense_exchange(each, rows, ranks, exchange) == costs.SHARED_MEMORY
    ]
    others = [
        each
        for each in gradients
        if each not in factored and each.item_bytes == costs.SHARED_NUMBER_BYTES
    ]
    # With another value, ranks may gather the rows of some of them.
    summed = (
        factored
        and exchange.sparse_as_dense
        and costs.sums_in_memory(sum(each.numbers for each in others), ranks)
    )
    return factored + (others if summed else [])


def copied_bytes(gradients: Sequence[Gradient], rows: int, ranks: int, exchange: Exchange) -> float:
    """Return the bytes that a rank reads and writes to exchange gradients through shared memory.

    Parameters
    ----------
    rows : of a rank.
    """
    found = 0.0
    for gradient in _in_memory(gradients, rows, ranks, exchange):
        if dense_exchange(gradient, rows, ranks, exchange) == costs.SHARED_MEMORY:
            inputs, outputs = gradient.shape
            own = rows * gradient.factor_rows * (inputs + outputs)
            of_all = rows * ranks * gradient.factor_rows * (inputs / ranks + outputs)
        else:
            own, of_all = gradient.numbers, gradient.numbers * ranks
        found += gradient.item_bytes * (2 * own + of_all)
    return found


def product_operations(
    gradients: Sequence[Gradient], rows: int, ranks: int, exchange: Exchange
) -> float:
    """Return the floating-point operations by which factors make the update of a rank longer.

    Each rank multiplies the factors of all ranks' rows, in place of its own: 2 · rows · in · out
    operations for each further rank.
    """
    return sum(
        2.0 * rows * (ranks - 1) * gradient.factor_rows * gradient.numbers
        for gradient in gradients
        if is_factored(gradient, rows, ranks, exchange)
    )
