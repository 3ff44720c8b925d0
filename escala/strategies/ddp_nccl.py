"""DistributedDataParallel over NCCL: every rank has a GPU."""

from __future__ import annotations

from escala.strategies.ddp import DDP


class DDPNccl(DDP):
    position = 23
    engine = "torch.ddp_nccl"
    has_nccl = True
