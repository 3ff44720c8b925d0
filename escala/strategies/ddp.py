"""The base of the strategies of PyTorch's DistributedDataParallel: gradients summed by buckets."""

from __future__ import annotations

from escala.strategies.programs import torchrun_variables
from escala.strategies.pytorch import PyTorch

#: The value of the knob `trained_module` with which each rank trains alone.
BARE = "bare"
#: The value of the knob `communication_hook` with which ranks sum in memory that they share.
SHARED_MEMORY = "shared-memory"


class DDP(PyTorch):
    engine = "torch.ddp"

    @classmethod
    def process_variables(cls, place, interface):
        return torchrun_variables(place, interface)

    @classmethod
    def refused(cls, knobs, checkpoint_epochs):
        hook = knobs["communication_hook"]
        if hook == "bf16" and not cls.has_nccl:
            reason = "needs ddp-nccl, because PyTorch takes this hook with NCCL only"
            yield "communication_hook", reason, "use fp16"
        if hook == SHARED_MEMORY and cls.has_nccl:
            reason = "is of ranks on processors, and those of NCCL are on GPUs"
            yield "communication_hook", reason, "use none"
        if hook == "powersgd" and checkpoint_epochs:
            reason = "is held by no checkpoint: what it adds to the next gradient would be lost"
            yield "communication_hook", reason, "set checkpoint_epochs: null"
        if knobs["static_graph"] and knobs["accumulation"] > 1:
            reason = f"needs accumulation: 1, and this variant sets {knobs['accumulation']}"
            yield "static_graph", reason, "use false"
        if knobs["trained_module"] == BARE:
            if knobs["evaluation"] != "whole":
                reason = "needs evaluation: whole, because the ranks differ"
                yield "trained_module", reason, "set evaluation: whole"
            if checkpoint_epochs:
                reason = "leaves the ranks with different weights, and a checkpoint holds one"
                yield "trained_module", reason, "set checkpoint_epochs: null"
