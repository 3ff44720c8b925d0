"""PyTorch's fully sharded data parallelism: between steps each rank holds a part of the model."""

from __future__ import annotations

from escala.strategies.programs import torchrun_variables
from escala.strategies.pytorch import PyTorch


class FSDP(PyTorch):
    position = 26
    engine = "torch.fsdp"
    divides_model = True
    has_nccl = True

    @classmethod
    def process_variables(cls, place, interface):
        return torchrun_variables(place, interface)

    @classmethod
    def refused(cls, knobs, checkpoint_epochs):
        for name, usual in (("torch_compile", False), ("slowdown", [])):
            if knobs[name] != usual:
                yield name, "is not supported by fsdp", "use ddp-gloo"
