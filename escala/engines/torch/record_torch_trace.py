"""Mark each step for the hook's profiler, as a program does (`escala.probes.torch_trace`)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from escala.engines.torch.engine import StepFunctions
from escala.hook import escala_trace
from escala.probes.torch_trace import TorchTrace


class Recorder:
    """Marks the end of each step. The profiler itself records the work of the step."""

    watch_exchange = None

    def __init__(self, probe: TorchTrace, plan: Mapping, process: int, device: torch.device):
        """Take the arguments of every recorder."""

    def watch(self, functions: StepFunctions, optimizer: torch.optim.Optimizer) -> StepFunctions:
        return functions

    def note(self, epoch: int, step: int, began: float, gathered: float, returned: float) -> None:
        escala_trace.mark()

    def write(self) -> None:
        escala_trace.end()
