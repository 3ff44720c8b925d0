"""DistributedDataParallel over Gloo, for processors, and for GPUs by way of the node's memory."""

from __future__ import annotations

from escala.strategies.ddp import DDP


class DDPGloo(DDP):
    position = 22
