"""The base of the strategies of PyTorch's DistributedDataParallel: gradients summed by buckets."""

from __future__ import annotations

from escala.strategies.programs import torchrun_variables
from escala.strategies.pytorch import PyTorch

#: The value of the knob `trained_module` with which each rank trains alone.
BARE = "bare"


class DDP(PyTorch):
    engine = "torch.ddp"

    @classmethod
    def process_variables(cls, place, interface):
        return torchrun_variables(place, interface)
