"""List what ranks exchange in a step.

| gradient | exchanged by | bytes of a tensor (allreduce) or of a rank's part (allgather) |
|---|---|---|
| dense | allreduce | numbers · item |
| as two factors | two allgathers | rows · in · item, and rows · out · item |
| sparse | two allgathers | rows · width · item, and rows · 4 for the indices |

`fp16` halves the bytes of a dense gradient and of the larger factor. With accumulation there are no
factors, all gradients are dense, and they are exchanged once a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from escala.analysis.cost_model.calibration import Gradient
from escala.analysis.cost_model.collectives import ALLGATHER, ALLREDUCE
from escala.strategies.costs import MIN_SAVED_BYTES
from escala.strategies.shared import sparse

#: Keras's `Embedding` casts the numbers that it looks up to int32.
_INDEX_BYTES = 4
_FP16_BYTES = 2


@dataclass(frozen=True)
class Exchange:
    """How the ranks exchange gradients; as the knobs of these names.

    Attributes
    ----------
    fusion_bytes : largest size of tensors that are exchanged as one; 0 fuses none. Horovod's
        default is 128 MiB (`horovod/common/operations.cc`, version 0.28).
    """

    factors: bool = False
    fp16: bool = False
    sparse_as_dense: bool | str = True
    accumulation: int = 1
    fusion_bytes: float = 128 * 2**20


@dataclass(frozen=True)
class Message:
    """A tensor that is exchanged.

    Attributes
    ----------
    size : bytes, as in `collectives.algorithm`.
    ready : share of a rank's computing after which it is known.
    cast_bytes : bytes that are read and written to convert it, before and after.
    """

    operation: str
    size: float
    ready: float
    cast_bytes: float = 0.0


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
    listed: list[Message] = []
    for gradient in gradients:
        if is_factored(gradient, rows, ranks, exchange):
            listed += _factors(gradient, rows, exchange)
        elif _stays_sparse(gradient, rows * ranks, ranks, exchange):
            listed += _sparse(gradient, rows)
        else:
            listed.append(_message(ALLREDUCE, gradient.numbers, gradient, exchange.fp16))
    return sorted(listed, key=lambda message: message.ready)


def _message(operation: str, numbers: float, gradient: Gradient, fp16: bool) -> Message:
    if not fp16 or gradient.item_bytes <= _FP16_BYTES:
        return Message(operation, numbers * gradient.item_bytes, gradient.ready)
    cast = 2 * numbers * (gradient.item_bytes + _FP16_BYTES)
    return Message(operation, numbers * _FP16_BYTES, gradient.ready, cast)


def _factors(gradient: Gradient, rows: int, exchange: Exchange) -> list[Message]:
    inputs, outputs = gradient.shape
    of_layer = rows * gradient.factor_rows
    return [
        _message(ALLGATHER, of_layer * inputs, gradient, exchange.fp16),
        _message(ALLGATHER, of_layer * outputs, gradient, False),
    ]


def _stays_sparse(gradient: Gradient, rows: int, ranks: int, exchange: Exchange) -> bool:
    """Return whether ranks gather the rows of a gradient, as `shared.sparse` decides it.

    Parameters
    ----------
    rows : of all ranks together.
    """
    if gradient.sparse_rows is None or exchange.accumulation > 1:
        return False
    if exchange.sparse_as_dense != sparse.AUTO:
        return not exchange.sparse_as_dense
    reads = sparse.Reads(gradient.sparse_rows, gradient.shape, gradient.item_bytes, _INDEX_BYTES)
    most_bytes = _FP16_BYTES if exchange.fp16 else None
    return sparse.fewest_bytes(reads, rows, ranks, most_bytes) == sparse.ROWS


def _sparse(gradient: Gradient, rows: int) -> list[Message]:
    read = rows * gradient.sparse_rows
    width = gradient.numbers / gradient.shape[0]
    return [
        Message(ALLGATHER, read * width * gradient.item_bytes, gradient.ready),
        Message(ALLGATHER, read * _INDEX_BYTES, gradient.ready),
    ]


def is_factored(gradient: Gradient, rows: int, ranks: int, exchange: Exchange) -> bool:
    """Return whether a gradient is exchanged as factors, as in `strategies.shared`.

    A rank must receive fewer bytes, by more than `MIN_SAVED_BYTES`.
    """
    if not exchange.factors or exchange.accumulation > 1 or gradient.factor_rows is None:
        return False
    inputs, outputs = gradient.shape
    fewer = 2 * inputs * outputs - rows * ranks * gradient.factor_rows * (inputs + outputs)
    return fewer * (ranks - 1) / ranks * gradient.item_bytes > MIN_SAVED_BYTES


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
