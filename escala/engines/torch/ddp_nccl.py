"""Ranks of DistributedDataParallel that sum gradients by NCCL, and what else they tell by Gloo."""

from __future__ import annotations

import torch

from escala.core.environment import call
from escala.core.errors import Unavailable
from escala.engines.torch import ddp


class NCCL(ddp.DDP):
    backend = "cpu:gloo,cuda:nccl"

    def start(self):
        if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
            raise Unavailable(
                "NCCL sums arrays on GPUs, and PyTorch finds no GPU. Remedy: use ddp-gloo, or "
                f"install the PyTorch with CUDA: {call('install torch')}"
            )
        return super().start()


RANKS = NCCL
