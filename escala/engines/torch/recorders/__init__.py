"""Record the steps of a process for a probe. A module here has the name of its probe.

It has a function `recorder(probe, plan, process, device)`, which returns a `StepRecorder`. Timing
runs have none, so their steps call nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from escala.engines.torch.step import Computed
from escala.probes import Recorder


class StepRecorder(Recorder, Protocol):
    """Records the steps of one process.

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
