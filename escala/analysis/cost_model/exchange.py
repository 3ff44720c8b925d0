"""List what ranks exchange in a step, and compute by how much the exchange makes a step longer.

| gradient | exchanged by | bytes, as in `transfers.traffic` |
|---|---|---|
| dense | allreduce | numbers · item |
| as two factors | allgather | rows · in · item |
| | allgather | rows · out · item |
| shared-memory | copies within a node | |
| sparse | allgather | rows · width · item |
| | allgather | rows · 4, the indices |

`rows` are the rows of one rank, and `item` is the bytes of a number. The kernel has `in` · `out`
numbers, and a row of a sparse variable has `width` numbers. `fp16` halves the bytes of a dense
gradient and of the larger factor. With accumulation all gradients are dense, and are exchanged once
a step.

With `shared-memory`, each rank updates some rows of the kernel. The rank writes both factors of its
batch rows. It reads the factors of the batch rows of all ranks: of the inputs only those of its
kernel rows, and all outputs. Other gradients are summed in this memory too, if they have few bytes.
Computing does not overlap with these copies. On several nodes, allreduce is used instead.

PyTorch's DistributedDataParallel sums dense gradients in buckets (`in_buckets`). Copying gradients
into buckets and back takes time. Measured steps with exchange contain this time.

A background thread polls for known tensors. It exchanges all of them in fused messages, one after
the other, and polls again. Horovod polls once per cycle (`RunLoopOnce` in
`horovod/common/operations.cc`, version 0.28), or later if sending takes longer than a cycle. A
tensor that becomes known after a poll waits for the next poll. A step may begin at any moment of a
cycle, so the result is the mean over such moments. Calibrated times of transfers include the mean
wait of half a cycle. This mean wait is subtracted here, because the wait for the poll is computed.
PyTorch sends a bucket as soon as the bucket is known, and fuses no buckets. So the cycle of PyTorch
is 0, and so is its limit of a fused message.

A transfer needs the core of its rank for a part of the time. Even if computing hides the whole
transfer, this part makes the step longer. A transfer also takes longer while the rank computes on
the same core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from escala.analysis.cost_model.calibration import Gradient
from escala.analysis.cost_model.transfers import Transfer
from escala.engines import costs
from escala.probes.collectives import ALLGATHER, ALLREDUCE

#: Keras's `Embedding` casts the numbers that it looks up to int32.
_INDEX_BYTES = 4
_FP16_BYTES = 2
#: Bytes at which the first bucket of PyTorch is full, and bytes for the other buckets: the defaults
#: (`BucketCapacityConfig` in `torch/nn/parallel/distributed.py`, version 2.13).
_BUCKETS = (2**20, 25 * 2**20)
#: Horovod's fusion threshold, and its cycle time between two polls: defaults of version 0.28.
FUSION_BYTES, CYCLE_SECONDS = 128 * 2**20, 1e-3
#: Number of moments of a cycle over which the mean is taken. The moments are the midpoints of equal
#: parts of the cycle, counted from the end of computing. So a tensor that is known at the end of
#: computing waits half a cycle on average.
_MOMENTS = 8


@dataclass(frozen=True)
class Exchange:
    """Settings of the exchange of gradients, from the knobs of a run.

    Attributes
    ----------
    dense : the exchange of large dense layers, one of `costs.EXCHANGES`.
    fp16 : whether numbers are rounded to 16 bits for the exchange.
    bucket_mib : MiB at which a bucket of PyTorch is full; None for PyTorch's two default sizes.
    """

    dense: str = costs.ALLREDUCE
    fp16: bool = False
    sparse_as_dense: bool = True
    accumulation: int = 1
    bucket_mib: float | None = None

    @property
    def buckets(self) -> tuple[float, ...]:
        """Bytes of messages at which each bucket is full; the last number is for all later ones.

        With `fp16` the bytes are halved, because numbers are rounded after they are in the bucket.
        """
        limits = _BUCKETS if self.bucket_mib is None else (self.bucket_mib * 2**20,)
        return tuple(limit / 2 for limit in limits) if self.fp16 else limits

    def across(self, nodes: int) -> Exchange:
        """Return the settings for `nodes` nodes: on several, allreduce replaces shared memory."""
        if nodes > 1 and self.dense == costs.SHARED_MEMORY:
            return replace(self, dense=costs.ALLREDUCE)
        return self


@dataclass(frozen=True)
class Message:
    """A tensor that is exchanged.

    Attributes
    ----------
    size : bytes of the tensor of one rank, as in `transfers.traffic`.
    ready : the fraction of a rank's computing that is done when the tensor is known.
    """

    operation: str
    size: float
    ready: float


@dataclass
class ExchangeWork:
    """The additional work of a rank in a step because there are other ranks.

    Attributes
    ----------
    messages : in the order in which they are known.
    moved_bytes : bytes read and written to convert messages, and to exchange through memory.
    operations : additional floating-point operations of the rank's update, to multiply factors.
    updated : fraction of the model's weights that the rank updates.
    """

    messages: list[Message] = field(default_factory=list)
    moved_bytes: float = 0.0
    operations: float = 0.0
    updated: float = 1.0

    def send(self, operation: str, numbers: float, gradient: Gradient, fp16: bool = False) -> None:
        """Add a message with numbers of a gradient, rounded to 16 bits if `fp16`."""
        item_bytes = gradient.item_bytes
        if fp16 and item_bytes > _FP16_BYTES:
            # Each number is read and written to convert it: before the exchange, and after the
            # exchange.
            self.moved_bytes += 2 * numbers * (item_bytes + _FP16_BYTES)
            item_bytes = _FP16_BYTES
        self.messages.append(Message(operation, numbers * item_bytes, gradient.ready))


def plan_exchange(
    gradients: Sequence[Gradient], rows: int, ranks: int, exchange: Exchange
) -> ExchangeWork:
    """Return what a rank exchanges in a step, and what the rank computes for the exchange.

    Parameters
    ----------
    rows : per rank.
    """
    sent = ExchangeWork()
    if ranks == 1 or not gradients:
        return sent
    ways = [dense_exchange(gradient, rows, ranks, exchange) for gradient in gradients]
    # Gradients of other layers are summed through memory too, if they have few bytes. Without
    # `sparse_as_dense`, ranks may gather the rows of some of these gradients.
    summed_in_memory: list[Gradient] = []
    if costs.SHARED_MEMORY in ways and exchange.sparse_as_dense:
        others = [
            gradient
            for gradient, way in zip(gradients, ways, strict=True)
            if way != costs.SHARED_MEMORY and gradient.item_bytes == costs.SHARED_NUMBER_BYTES
        ]
        if costs.sums_in_memory(sum(gradient.numbers for gradient in others), ranks):
            summed_in_memory = others
    divided_numbers = 0
    for gradient, way in zip(gradients, ways, strict=True):
        layer_rows = rows * (gradient.factor_rows or 0)
        if way == costs.SHARED_MEMORY:
            inputs, outputs = gradient.shape
            numbers_written = layer_rows * (inputs + outputs)
            numbers_read = layer_rows * ranks * (inputs / ranks + outputs)
            sent.moved_bytes += gradient.item_bytes * (2 * numbers_written + numbers_read)
            divided_numbers += gradient.numbers
        elif way == costs.FACTORS:
            inputs, outputs = gradient.shape
            sent.send(ALLGATHER, layer_rows * inputs, gradient, exchange.fp16)
            sent.send(ALLGATHER, layer_rows * outputs, gradient)
            # A rank multiplies the factors of all rows, not only of its own rows.
            sent.operations += 2.0 * layer_rows * (ranks - 1) * gradient.numbers
        elif gradient in summed_in_memory:
            sent.moved_bytes += gradient.item_bytes * gradient.numbers * (2 + ranks)
        elif gradient.sparse_rows and not exchange.sparse_as_dense and exchange.accumulation == 1:
            indices = rows * gradient.sparse_rows
            sent.send(ALLGATHER, indices * gradient.numbers / gradient.shape[0], gradient)
            sent.messages.append(Message(ALLGATHER, indices * _INDEX_BYTES, gradient.ready))
        else:
            sent.send(ALLREDUCE, gradient.numbers, gradient, exchange.fp16)
    sent.messages.sort(key=lambda message: message.ready)
    divided = divided_numbers / sum(gradient.numbers for gradient in gradients)
    sent.updated = 1 - divided * (1 - 1 / ranks)
    return sent


def in_buckets(messages: Sequence[Message], limits: Sequence[float]) -> list[Message]:
    """Return the messages of PyTorch's buckets, which gradients fill in the order they are known.

    A bucket is full when its bytes reach its limit, so its last gradient may exceed the limit
    (`compute_bucket_assignment_by_size` in `torch/csrc/distributed/c10d/reducer.cpp`). Gradients
    that are known at the same moment are in the reverse order of the model.

    Parameters
    ----------
    messages : in the order in which they are known.
    limits : as `Exchange.buckets`.
    """
    buckets, size = [], 0.0
    backwards = list(reversed(messages))
    ordered = sorted(backwards, key=lambda message: message.ready)
    for number, message in enumerate(ordered, start=1):
        size += message.size
        if size >= limits[min(len(buckets), len(limits) - 1)] or number == len(ordered):
            buckets.append(Message(ALLREDUCE, size, message.ready))
            size = 0.0
    return buckets


def dense_exchange(gradient: Gradient, rows: int, ranks: int, exchange: Exchange) -> str:
    """Return the exchange of a gradient, one of `costs.EXCHANGES`, as the strategies decide it.

    If the exchange of the settings saves each rank more than `costs.MIN_SAVED_BYTES` of received
    bytes, return this exchange. Otherwise return allreduce.

    Parameters
    ----------
    rows : per rank.
    """
    wanted = costs.ALLREDUCE if exchange.accumulation > 1 else exchange.dense
    in_memory = wanted == costs.SHARED_MEMORY
    if (
        wanted == costs.ALLREDUCE
        or gradient.factor_rows is None
        or (in_memory and gradient.factor_rows != 1)
        or (in_memory and gradient.item_bytes != costs.SHARED_NUMBER_BYTES)
        or (in_memory and gradient.shape[0] < ranks)
    ):
        return costs.ALLREDUCE
    product = costs.Product(
        *gradient.shape,
        gradient.factor_rows * rows * ranks,
        gradient.item_bytes,
    )
    summed, received = (
        costs.count_received_bytes(way, product, ranks) for way in (costs.ALLREDUCE, wanted)
    )
    return wanted if summed - received > costs.MIN_SAVED_BYTES else costs.ALLREDUCE


def compute_exposure(
    computing: float,
    messages: Sequence[Message],
    transfer: Callable[[str, float], Transfer],
    spare_core: bool = False,
    cycle: float = 0.0,
    fusion_bytes: float = FUSION_BYTES,
) -> float:
    """Return by how many seconds the exchange makes a step longer than its computing.

    Parameters
    ----------
    computing : seconds until a rank has its last gradient, if it only computes.
    messages : in the order in which they are known.
    transfer : returns the time of an operation on a number of bytes.
    spare_core : whether transfers have a core on which no rank computes.
    cycle : seconds between two polls; 0 if the background thread polls all the time.
    fusion_bytes : largest size of a fused message.
    """
    transfer = cache(transfer)
    first_polls = [0.0]
    if cycle:
        first_polls = [
            (computing + (moment + 0.5) / _MOMENTS * cycle) % cycle for moment in range(_MOMENTS)
        ]
    exposed = []
    for poll in first_polls:
        now = done = 0.0  # the time, and the seconds of computing that are done
        polled, done_at_poll = 0.0, -1.0  # the time of the last poll, and `done` at this poll
        waiting = list(messages)
        while waiting:
            if (known := waiting[0].ready * computing) > done_at_poll:
                # The first poll at or after the moment when the next message is known.
                moment = now + max(known - done, 0.0)
                polled = max(moment, poll)
                if cycle and moment > poll:
                    polled = poll + math.ceil((moment - poll) / cycle) * cycle
                done_at_poll = done = max(min(done + (polled - now), computing), known)
                now = polled
            fused = _fuse(waiting, done_at_poll, computing, fusion_bytes)
            waiting = waiting[len(fused) :]
            cost = transfer(fused[0].operation, sum(message.size for message in fused))
            alone = max(cost.seconds - cycle / 2, 0.0)
            core_seconds = 0.0 if spare_core else cost.core_seconds
            alongside = max(cost.seconds + core_seconds - cycle / 2, 0.0)
            # While both are active, computing has the core whenever the transfer does not use it.
            advance = max(alongside - core_seconds, 0.0)
            hidden = min(computing - done, advance)
            fraction = hidden / advance if advance else 0.0
            now += fraction * alongside + (1 - fraction) * alone
            # If rounding made the sum less than all computing, the last message would wait for one
            # more poll.
            done = computing if hidden == computing - done else done + hidden
            poll = max(polled + cycle, now)
        exposed.append(now - done)
    return sum(exposed) / len(exposed)


def _fuse(
    waiting: Sequence[Message], done: float, computing: float, fusion_bytes: float
) -> list[Message]:
    """Return the messages that are fused next: of one operation, and not too large together.

    Parameters
    ----------
    done : seconds of computing that are done at the poll. Tensors that are known then are fused.
    """
    fused, size = [waiting[0]], waiting[0].size
    for message in waiting[1:]:
        size += message.size
        known = message.ready * computing <= done
        if not known or message.operation != fused[0].operation or size > fusion_bytes:
            break
        fused.append(message)
    return fused
