"""Strategies of PyTorch: one process, DistributedDataParallel and FSDP."""

from __future__ import annotations

from escala.strategies.base import EvaluatesInParts, Layouts, Numbered, Option, Strategy

#: The value of the knob `trained_module` with which each rank trains alone.
BARE = "bare"
#: The value of the knob `communication_hook` with which ranks sum in shared memory.
SHARED_MEMORY = "shared-memory"


class PyTorch(Strategy):
    """Strategies that train models of PyTorch."""


class TorchSingle(PyTorch):
    """One process of PyTorch, which has nothing to synchronise."""

    name = "torch-single"
    title = "PyTorch by itself"
    position = 20
    engine = "torch.ranks.Ranks"
    layouts = Layouts(one_rank=True)


class DDP(PyTorch, Numbered, EvaluatesInParts):
    """DistributedDataParallel: gradients are summed by buckets."""

    engine = "torch.ranks.DDPRanks"

    @classmethod
    def exchanges(cls, knobs):
        return knobs["trained_module"] != BARE

    @classmethod
    def find_refusals(cls, knobs, checkpoint_epochs):
        hook = knobs["communication_hook"]
        if hook == "bf16" and not cls.has_nccl:
            reason = "needs ddp-nccl, because PyTorch takes this hook with NCCL only"
            yield "communication_hook", reason, "use fp16"
        if hook == SHARED_MEMORY and cls.has_nccl:
            reason = "is for ranks on processors, and ranks of NCCL are on GPUs"
            yield "communication_hook", reason, "use none"
        if knobs["trained_module"] == BARE:
            if knobs["evaluation"] != "whole":
                reason = "needs evaluation: whole, because the ranks differ"
                yield "trained_module", reason, "set evaluation: whole"
            if checkpoint_epochs:
                reason = "leaves ranks with different weights, and a checkpoint holds one rank's"
                yield "trained_module", reason, "set checkpoint_epochs: null"


class DDPSingle(DDP):
    """One process inside DistributedDataParallel, to show its cost without communication."""

    name = "ddp-single"
    title = "with the calls of PyTorch's DDP"
    position = 21
    layouts = Layouts(one_rank=True)


class DDPGloo(DDP):
    """DistributedDataParallel over Gloo, for processors, and for GPUs through node memory."""

    name = "ddp-gloo"
    title = "PyTorch's DDP over Gloo"
    position = 22
    library = "torch-gloo"


class DDPNccl(DDP):
    """DistributedDataParallel over NCCL: every rank has a GPU."""

    name = "ddp-nccl"
    title = "PyTorch's DDP over NCCL"
    position = 23
    engine = "torch.ranks.NCCLRanks"
    library = "nccl"
    has_nccl = True


class DDPHybrid(DDP):
    """DistributedDataParallel of ranks of unequal speed. Each rank takes a part of every batch.

    The knob `fractions`, which only this class and `Hybrid` read, gives the parts.
    Every rank divides the loss of a row by the global number of rows, so the sum of the gradients
    equals the gradient of one process with all rows, for any fractions.
    """

    name = "ddp-hybrid"
    title = "PyTorch's DDP with unequal shares"
    position = 24
    library = "torch-gloo"


class FSDP(PyTorch, Numbered, EvaluatesInParts):
    """Fully sharded data parallelism: between steps each rank holds a part of the model."""

    name = "fsdp"
    title = "PyTorch's FSDP"
    position = 25
    engine = "torch.ranks.FSDPRanks"
    has_nccl = True

    @classmethod
    def find_refusals(cls, knobs, checkpoint_epochs):
        for name, usual in (("torch_compile", False), ("slowdown", [])):
            if knobs[name] != usual:
                yield name, "is not supported by fsdp", "use ddp-gloo"


class TorchDDP(Numbered):
    """PyTorch's DistributedDataParallel in a program that reads its place from the environment."""

    name = "torch-ddp"
    title = "PyTorch's DDP"
    position = 8
    programs = "torch"
    option = Option(
        "--torch",
        "PyTorch's DistributedDataParallel: RANK, WORLD_SIZE, MASTER_ADDR, …",
        "RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT",
        signs=("imports torch", "calls init_process_group"),
    )

    @classmethod
    def process_variables(cls, place, interface):
        # Further variables of `torchrun`. The run's name tells libraries such as Lightning that
        # another program starts the processes. There is no agent whose store these libraries could
        # use.
        return super().process_variables(place, interface) | {
            "ROLE_NAME": "default",
            "ROLE_RANK": str(place.process),
            "ROLE_WORLD_SIZE": str(place.processes),
            "TORCHELASTIC_RUN_ID": "escala",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
