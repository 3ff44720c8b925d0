"""One step of a rank: compute the gradients of its rows, exchange them and apply them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import nn

from escala.engines.layers import over_ranks
from escala.engines.torch.ranks import Ranks
from escala.probes import Recorder
from escala.workloads.models import given


class Computed(NamedTuple):
    """The functions that a step calls: the model, the losses of rows, and their correctness."""

    model: nn.Module
    row_losses: Callable
    correct: Callable


class StepRecorder(Recorder, Protocol):
    """Records the steps of one process for a probe.

    Attributes
    ----------
    watched_exchange : returns a communication hook of DistributedDataParallel with what the
        recorder adds; None if it adds nothing.
    """

    watched_exchange: Callable[[Callable], Callable] | None

    def watched(self, computed: Computed, optimizer: torch.optim.Optimizer) -> Computed:
        """Return what a step calls, with what the recorder adds; it may add hooks to `optimizer`.

        It is called once, when both are built.
        """


class Step:
    """The steps of one rank.

    Parameters
    ----------
    local : the buffers that the model itself updates; a rank without rows does not change them.
    parts : in how many parts a rank computes its rows of a step, the knob `accumulation`.
    normalises : whether the model has layers that normalise over the rows of all ranks.
    """

    def __init__(
        self,
        computed: Computed,
        optimizer: torch.optim.Optimizer,
        ranks: Ranks,
        local: Sequence[torch.Tensor],
        device: torch.device,
        parts: int = 1,
        normalises: bool = False,
    ):
        self._model, self._row_losses, self._correct = computed
        self._optimizer, self._ranks, self._local = optimizer, ranks, local
        self._device = None if device.type == "cpu" else device
        self._parts, self._normalises = parts, normalises

    def together(self, arguments: tuple) -> tuple[float, float]:
        """Make a step of all ranks; return this rank's sums of losses and of hits.

        Gradients of the sum of the losses ÷ divisor are summed over all ranks. The exchange divides
        them by the number of ranks, so they are multiplied by it before.
        """
        return self._make(arguments, self._ranks.divides_by, self._ranks.summed, None)

    def by_itself(self, arguments: tuple) -> None:
        """Make a step that exchanges nothing."""
        self._make(arguments, 1, None, self._ranks.alone)

    def _make(
        self,
        arguments: tuple,
        scale: int,
        summed: Callable | None,
        alone: Callable[[], AbstractContextManager] | None,
    ) -> tuple[float, float]:
        *arrays, divisor = arguments
        tensors = [torch.from_numpy(array) for array in arrays]
        if self._device:
            tensors = [tensor.to(self._device, non_blocking=True) for tensor in tensors]
        factor = scale / float(divisor)
        self._optimizer.zero_grad()
        kept = None
        if self._local and not arrays[-1].any():
            kept = [buffer.clone() for buffer in self._local]
        if self._parts == 1 and alone is None:
            loss, right = self._backward(tensors, factor, summed)
        else:
            loss, right = self._in_parts(tensors, factor, summed, alone)
        if kept:
            for buffer, value in zip(self._local, kept, strict=True):
                buffer.copy_(value)
        self._optimizer.step()
        return loss.item(), right.item()

    def _backward(
        self, tensors: list[torch.Tensor], factor: float, summed: Callable | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the gradients of some rows, and return the sums of their losses and hits."""
        *inputs, targets, weights = tensors
        with over_ranks(weights, summed) if self._normalises else _NOTHING:
            outputs = self._model(given(inputs))
            loss = torch.dot(weights, self._row_losses(targets, outputs))
            (loss * factor).backward()
        with torch.no_grad():
            return loss.detach(), torch.dot(weights, self._correct(targets, outputs))

    def _in_parts(
        self,
        tensors: list[torch.Tensor],
        factor: float,
        summed: Callable | None,
        alone: Callable[[], AbstractContextManager] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute rows in parts, one after the other; fewer rows than parts give one part a row.

        Gradients are exchanged with the last part, unless the rank makes its step `alone`.
        """
        rows = len(tensors[-1])
        size = -(-rows // self._parts)
        sums = []
        for start in range(0, rows, size):
            last = start + size >= rows
            with nullcontext() if last and alone is None else self._ranks.alone():
                part = [tensor[start : start + size] for tensor in tensors]
                sums.append(self._backward(part, factor, summed))
        losses, hits = zip(*sums, strict=True)
        return sum(losses), sum(hits)


_NOTHING = nullcontext()


def slow_down(model: nn.Module, factor: float) -> None:
    """Let a model take `factor` times as long for its passes, as on a slower processor.

    It sleeps, so the core is free meanwhile. In the backward pass it sleeps before each gradient is
    complete, so an exchange during it begins as late as there.
    """
    if factor == 1:
        return
    since = [0.0]

    def begin(*_: object) -> None:
        since[0] = time.perf_counter()

    def sleep(*_: object) -> None:
        time.sleep((factor - 1) * (time.perf_counter() - since[0]))
        begin()

    model.register_forward_pre_hook(begin)
    model.register_forward_hook(sleep)
    for parameter in filter(lambda each: each.requires_grad, model.parameters()):
        parameter.register_hook(sleep)
