"""What a step of a rank calls, what records it, and what slows it down."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import nn

from escala.probes import Recorder


class Computed(NamedTuple):
    """The functions that a step calls: the model, the losses of rows, and their correctness."""

    model: nn.Module
    row_losses: Callable
    correct: Callable


class StepRecorder(Recorder, Protocol):
    """Records the steps of one process for a probe.

    Attributes
    ----------
    watch_exchange : returns a communication hook of DistributedDataParallel with what the
        recorder adds; None if it adds nothing.
    """

    watch_exchange: Callable[[Callable], Callable] | None

    def watch(self, computed: Computed, optimizer: torch.optim.Optimizer) -> Computed:
        """Return what a step calls, with what the recorder adds; it may add hooks to `optimizer`.

        It is called once, when both are built.
        """


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
    for parameter in filter(lambda weight: weight.requires_grad, model.parameters()):
        parameter.register_hook(sleep)
