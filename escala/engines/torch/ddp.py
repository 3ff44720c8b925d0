"""Ranks of PyTorch's DistributedDataParallel: gradients are summed by buckets while it computes."""

from __future__ import annotations

import socket
import time
from contextlib import closing
from datetime import timedelta
from inspect import signature

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from escala.core.environment import call
from escala.core.errors import Unavailable
from escala.engines.torch import ddp, shared_memory
from escala.engines.torch.ranks import Ranks
from escala.engines.torch.strategies import BARE, SHARED_MEMORY

#: How long a rank waits for the others to start, and for each exchange: PyTorch's own time.
TIMEOUT = timedelta(minutes=30)
#: Hooks that round, by the value of `communication_hook`; absent, PyTorch's own sum.
_ROUNDING = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
#: The argument that lets each forward pass begin with the buffers of rank 0. Its name has changed.
_SYNCHRONISES = "broadcast_buffers"
if "forward_sync_buffers" in signature(DistributedDataParallel).parameters:
    _SYNCHRONISES = "forward_sync_buffers"
#: Groups that have ended, kept as long as the process. Otherwise a model that is let go of may be
#: the last to hold its group. It would wait for Gloo's threads with Python's lock, and these may
#: need the lock to let go of a tensor: both would wait for ever (seen with PyTorch 2.13).
_ENDED: list[dist.ProcessGroup] = []


class Distributed(Ranks):
    """Ranks that are processes of `torch.distributed`."""

    #: PyTorch's name of the library that sums.
    backend = "gloo"

    def start(self):
        place = self.place
        dist.init_process_group(
            self.backend,
            store=meeting(place.extra_addresses[0], place.process, place.processes),
            rank=place.process,
            world_size=place.processes,
            timeout=TIMEOUT,
        )
        return [dist.get_rank()], dist.get_world_size()

    def summed(self, values):
        return _Sum.apply(values)

    def broadcast(self, tensors):
        for tensor in tensors:
            dist.broadcast(tensor, 0)

    def total(self, values):
        # Backends of GPUs cannot sum what lies in the node's memory; this tensor is on a processor.
        summed = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(summed)
        return summed.numpy()

    def collective(self, operation, size):
        on_gpu = torch.cuda.is_available()
        values = torch.zeros(size // 4, device="cuda" if on_gpu else "cpu")

        def seconds() -> float:
            began = time.perf_counter()
            dist.all_reduce(values)
            if on_gpu:
                torch.cuda.synchronize()
            return time.perf_counter() - began

        return seconds

    def stop(self):
        _ENDED.append(dist.group.WORLD)
        dist.destroy_process_group()


class DDP(Distributed):
    @property
    def divides_by(self):
        in_memory = self.knobs["communication_hook"] == SHARED_MEMORY
        return 1 if in_memory and not self._bare else self.place.processes

    def wrapped(self, model, watch=None):
        knobs = self.knobs
        self._model = DistributedDataParallel(
            model,
            bucket_cap_mb=knobs["bucket_cap_mb"],
            gradient_as_bucket_view=knobs["gradient_as_bucket_view"],
            find_unused_parameters=knobs["find_unused_parameters"],
            # The engine averages buffers at the end of an epoch.
            **{_SYNCHRONISES: False},
        )
        state, hook = None, _ROUNDING.get(knobs["communication_hook"])
        if knobs["communication_hook"] == SHARED_MEMORY:
            state, hook = shared_memory.Sums(self, model, TIMEOUT), shared_memory.hook
        if watch:
            hook = watch(hook or default_hooks.allreduce_hook)
        if hook:
            self._model.register_comm_hook(state, hook)
        # Its hooks exchange only what a forward pass through it announces.
        return model if self._bare else self._model

    @property
    def _bare(self) -> bool:
        """Return whether each rank trains the bare module, whose gradients are not exchanged."""
        return self.knobs["trained_module"] == BARE

    def alone(self):
        return self._model.no_sync()

    def summed(self, values):
        return values if self._bare else super().summed(values)

    def agree(self, buffers, rows):
        if not self._bare:
            super().agree(buffers, rows)


class _Sum(torch.autograd.Function):
    """The sum of a tensor over all ranks, whose gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(context, values):
        return _total(values)

    @staticmethod
    def backward(context, gradients):
        return _total(gradients)


def _total(values: torch.Tensor) -> torch.Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def meeting(address: str, process: int, processes: int) -> dist.Store:
    """Return the store where processes find each other, which the first one serves.

    It listens on one address of the run's network; PyTorch by itself would listen on all. The port
    is bound here first, so that the store cannot find it taken.

    Parameters
    ----------
    address : `ADDRESS:PORT` on the first node; the port was free.

    Raises
    ------
    OSError : the port has been taken meanwhile.
    """
    host, port = address.rsplit(":", 1)
    if process:
        return dist.TCPStore(host, int(port), processes, False, TIMEOUT)
    with closing(socket.create_server((host, int(port)), backlog=processes)) as server:
        return dist.TCPStore(
            host, int(port), processes, True, TIMEOUT, master_listen_fd=server.detach()
        )


class NCCL(ddp.DDP):
    backend = "cpu:gloo,cuda:nccl"

    def start(self):
        if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
            raise Unavailable(
                "NCCL sums arrays on GPUs, and PyTorch finds no GPU. Remedy: use ddp-gloo, or "
                f"install the PyTorch with CUDA: {call('install torch')}"
            )
        return super().start()
