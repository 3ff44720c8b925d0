"""Ranks of PyTorch's `fully_shard`: each holds a part of every parameter, and of its optimizer.

A step gathers whole parameters before its forward pass, sums the gradients so that each rank gets
its part, and updates this part. An evaluation gathers them, too; they stay whole until the next
step has made its backward pass, so processes may evaluate different numbers of rows. Every process
evaluates at least one row.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from escala.engines.torch.ddp import Distributed


class FSDP(Distributed):
    def start(self):
        if torch.cuda.is_available() and dist.is_nccl_available():
            self.backend = "cpu:gloo,cuda:nccl"
        return super().start()

    def wrapped(self, model, watch=None):
        # The parts of a rank are parts of the same weights.
        with torch.no_grad():
            self.broadcast([*model.parameters(), *model.buffers()])
        mesh = init_device_mesh(next(model.parameters()).device.type, (self.place.processes,))
        self._model = fully_shard(model, mesh=mesh, reshard_after_forward=False)
        # Otherwise it divides the sum by the number of ranks, as far as the library can.
        self._model.set_gradient_divide_factor(1.0)
        self._model.set_force_sum_reduction_for_comms(True)
        return self._model

    @contextmanager
    def alone(self):
        self._model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._model.set_requires_gradient_sync(True)

    def divide(self):
        self._model.reshard()

    def broadcast(self, tensors):
        super().broadcast([each for each in tensors if not hasattr(each, "full_tensor")])
