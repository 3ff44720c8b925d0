"""Tell the hook's profiler of each step, as a program does (`escala.probes.torch_trace`)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from escala.engines.torch.step import Computed
from escala.hook import escala_trace
from escala.probes.torch_trace import TorchTrace


def recorder(probe: TorchTrace, plan: Mapping, process: int, device: torch.device) -> Steps:
    """Return the recorder of a process for a probe; timing runs have none."""
    return Steps()


class Steps:
    """The profiler sees what a step does, so only the end of each step is told."""

    watched_exchange = None

    def watched(self, computed: Computed, optimizer: torch.optim.Optimizer) -> Computed:
        return computed

    def note(self, epoch: int, step: int, began: float, gathered: float, returned: float) -> None:
        escala_trace.mark("step")

    def write(self) -> None:
        escala_trace.end()
