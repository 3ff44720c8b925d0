"""Sums of gradients in memory that the ranks of a node share, as a communication hook.

The hook only notes a bucket, until the last one of a step. Then it copies all buckets into the
rank's part of the memory, sets a counter, and waits for the counters of all ranks. It sums the
parts in the order of the ranks, so all ranks get the same numbers. Nothing is exchanged while
gradients are computed: a copy needs the core that computes them.

With another counter a rank shows that it has read all parts. No part is written again before. Other
ranks must see a copy before the counter that shows it. Processors of x86-64 keep this order. Python
cannot ask other processors for it, so they are refused.
"""

from __future__ import annotations

import mmap
import platform
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future

from escala.core.errors import Unavailable
from escala.engines.base import Group
from escala.engines.torch.strategies import SHARED_MEMORY

#: The knob that needs no memory that ranks share.
INSTEAD = "communication_hook: none"
#: Names of the processors that keep the order of writes, as `platform.machine` gives them.
_ORDERED = ("x86_64", "AMD64")
#: Reads of a counter before a rank sleeps between them, some 50 µs, and seconds of each sleep.
READS, NAP = 1000, 5e-5
#: Bytes that processors keep together: a rank's counters and each bucket begin with such a line.
_LINE = 64


class Sums:
    """Memory of the ranks of a node, by which they sum the gradients of a model.

    Every rank makes it, and calls `add` with the same buckets in the same order.

    Parameters
    ----------
    ranks : the ranks; each is a process, and has started.
    longest : for how long a rank waits for the others in a step.

    Raises
    ------
    Unavailable : the ranks cannot share memory; with what to change.
    """

    def __init__(self, ranks: Group, model: nn.Module, longest: timedelta):
        place = ranks.place
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        on_processors = all(weight.device.type == "cpu" for weight in trained)
        if place.nodes > 1 or not on_processors or platform.machine() not in _ORDERED:
            raise Unavailable(
                f"communication_hook: {SHARED_MEMORY} needs ranks on the x86-64 processors of one "
                f"node. Remedy: {INSTEAD}"
            )
        self._rank, self._longest, self._step = place.process, longest, 0
        # The bytes of all counters, and of the part of a rank. A bucket holds whole gradients.
        counters = _LINE * place.processes
        size = sum(_in_lines(weight.nbytes) for weight in trained)
        memory = ranks.share_memory(
            lambda path: _map(path, counters + place.processes * size, place.process == 0),
            INSTEAD,
        )
        numbers = np.frombuffer(memory, np.int64, counters // 8).reshape(place.processes, -1)
        # For each rank, the last step whose gradients it has written, and the last it has read.
        self._written, self._read = memoryview(numbers[:, 0]), memoryview(numbers[:, 1])
        parts = torch.frombuffer(memory, dtype=torch.uint8, offset=counters)
        self._parts = parts.view(place.processes, size)
        self._buckets: list[tuple[torch.Tensor, Future]] = []

    def add(self, bucket: dist.GradBucket) -> Future:
        """Return the future of a bucket's sum over all ranks, which the last of a step sets."""
        future = Future()
        self._buckets.append((bucket.buffer(), future))
        if bucket.is_last():
            self._sum()
        return future

    def _sum(self) -> None:
        self._wait(self._read)
        parts, begin = [], 0
        for buffer, _ in self._buckets:
            parts.append(self._parts[:, begin : begin + buffer.nbytes].view(buffer.dtype))
            parts[-1][self._rank].copy_(buffer)
            begin += _in_lines(buffer.nbytes)
        self._step += 1
        self._written[self._rank] = self._step
        self._wait(self._written)
        for (buffer, future), rank_parts in zip(self._buckets, parts, strict=True):
            # `torch.sum` over the ranks takes ten times as long.
            total = rank_parts[0]
            for part in rank_parts[1:]:
                total = torch.add(total, part, out=buffer)
            future.set_result(buffer)
        self._read[self._rank] = self._step
        self._buckets = []

    def _wait(self, counters: memoryview) -> None:
        """Wait until the counters of all ranks have reached this rank's step."""
        ends = time.monotonic() + self._longest.total_seconds()
        for rank in range(len(counters)):
            reads = 0
            while counters[rank] < self._step:
                reads += 1
                if reads < READS:
                    continue
                time.sleep(NAP)
                if time.monotonic() > ends:
                    raise TimeoutError(
                        f"rank {self._rank} has waited {self._longest} for the gradients of rank "
                        f"{rank} in step {self._step}: does it still run? Its log is in `ranks/`"
                    )


# PyTorch refuses a hook whose annotations are strings.
def hook(sums, bucket):
    """Return the future of a bucket's sum: a communication hook, whose state are the `Sums`."""
    return sums.add(bucket)


def _in_lines(size: int) -> int:
    """Return a number of bytes, rounded up to whole lines."""
    return -(-size // _LINE) * _LINE


def _map(path: str, size: int, first: bool) -> mmap.mmap:
    """Map a file as memory, to which the `first` rank gives its size."""
    try:
        with open(path, "r+b") as file:
            if first:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except (OSError, ValueError) as error:
        raise Unavailable(f"no memory that ranks share: {error}. Remedy: {INSTEAD}") from error
