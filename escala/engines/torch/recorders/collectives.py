"""Calls of collectives inside a rank, and its steps of each kind (`escala.probes.collectives`).

Of the collectives, only sums are timed: DistributedDataParallel uses no other in a step. On a GPU,
the time of a call ends when the GPU has done it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from escala.engines.torch.normalisation import synchronised
from escala.engines.torch.step import Computed
from escala.probes import _timed
from escala.probes.collectives import ALLREDUCE, Collectives
from escala.strategies import STRATEGIES


def recorder(probe: Collectives, plan: Mapping, process: int, device: torch.device) -> Timed:
    """Return the recorder of a process, see `escala.engines.torch.recorders`."""
    return Timed(probe, plan, process, timed_library(plan["strategy"], device), True)


class Timed(_timed.Timed):
    """Times the collectives of one process, and its steps."""

    # The exchange is that of a timing run.
    watched_exchange = None

    def __init__(self, *arguments):
        super().__init__(*arguments)
        # The first exchange decides on the buckets of all others, so it belongs to the warm-up.
        self._exchanging = True

    def watched(self, computed: Computed, optimizer: torch.optim.Optimizer) -> Computed:
        ddp: nn.Module = computed.model
        self._parameters = [*ddp.parameters()]
        # A rank in its turn would wait for the rows of the others.
        self.alone = not synchronised(ddp)

        def model(inputs):
            if self._exchanging or not self.alone:
                return ddp(inputs)
            with ddp.no_sync():
                return ddp(inputs)

        return computed._replace(model=model)

    def exchange(self, exchanging):
        self._exchanging = exchanging

    def broadcast(self):
        for parameter in self._parameters:
            dist.broadcast(parameter.detach(), 0)


def timed_library(strategy: str, device: torch.device) -> _timed.Library:
    """Return the collectives of a strategy's library in calls of PyTorch."""

    def call(operation: str, size: int) -> Call:
        values = torch.zeros(size // 4, device=device)
        return Call(lambda: dist.all_reduce(values), device)

    def agree(value: float) -> float:
        both = torch.tensor([value, 1.0], dtype=torch.float64)
        dist.all_reduce(both)
        return float(both[0] / both[1])

    def product(*factors: np.ndarray) -> Callable:
        inputs, outputs = map(torch.from_numpy, factors)
        return lambda: inputs.T @ outputs

    empty = Call(lambda: None, device)
    name = STRATEGIES[strategy].library
    return _timed.Library(name, (ALLREDUCE,), call, empty, agree, product)


class Call:
    """A call whose time is that until the device has done it."""

    def __init__(self, call: Callable, device: torch.device):
        self._call, self._on_gpu = call, device.type == "cuda"

    def seconds(self) -> float:
        """Return the time of a call."""
        self._wait()
        began = time.perf_counter()
        self._call()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()
