"""The processes of a run as PyTorch has them: how they join, exchange gradients and agree."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import timedelta
from inspect import signature

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from escala.core.environment import call
from escala.core.errors import Unavailable
from escala.engines.base import Group
from escala.engines.torch import shared_memory
from escala.engines.torch.strategies import BARE, SHARED_MEMORY

#: How long a rank waits for the others to start, and for each exchange: PyTorch's own time.
TIMEOUT = timedelta(minutes=30)
#: Hooks that round, by the value of `communication_hook`; absent, PyTorch's own sum.
_ROUNDING = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
#: The argument that lets each forward pass begin with the buffers of rank 0. Its name has changed.
_SYNCHRONISES = "broadcast_buffers"
if "forward_sync_buffers" in signature(DistributedDataParallel).parameters:
    _SYNCHRONISES = "forward_sync_buffers"
#: Groups that have ended, kept as long as the process. Otherwise the last reference to a group may
#: be that of a model. When the model is deleted, it would wait for Gloo's threads and hold Python's
#: lock, which these may need to delete a tensor: both would wait for ever (seen with PyTorch 2.13).
_ENDED: list[dist.ProcessGroup] = []


class Ranks(Group):
    """One process among those of a run, and how its ranks exchange inside PyTorch.

    This base class is for the only rank of a run.

    Attributes
    ----------
    divides_by : the number by which the exchange divides the sum of the gradients.
    """

    divides_by = 1

    def wrap(self, model: nn.Module, watch: Callable | None = None) -> nn.Module:
        """Return what a step calls in place of the model, so that gradients are exchanged.

        It is called once, before the optimizer is built. It must leave the model's buffers to
        `average_buffers`, while PyTorch's wrappers by default send the buffers of rank 0.

        Parameters
        ----------
        watch : `watch_exchange` of a recorder, see `StepFunctions` of the engine; None in timing
            runs.
        """
        return model

    def alone(self) -> AbstractContextManager:
        """Return the context of forward and backward passes whose gradients are not exchanged."""
        return nullcontext()

    def sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over all ranks inside a step, with its gradient.

        Every rank must call it.
        """
        return values

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give every rank the values that rank 0 holds."""

    def average_buffers(self, buffers: Sequence[torch.Tensor], rows: int) -> None:
        """Make the buffers of all ranks equal: their mean, weighted by the rows of each rank.

        A rank without rows has not updated its buffers and has weight 0. Every process calls this.

        Parameters
        ----------
        rows : number of rows of this rank in the epoch.
        """
        copy = [buffer.double().cpu().numpy() for buffer in buffers]
        for buffer, mean in zip(buffers, self.mean([copy], [rows]), strict=True):
            buffer.copy_(torch.from_numpy(mean))

    def reshard(self) -> None:
        """Let this rank hold only its part of each parameter, if the strategy divides them."""


class Distributed(Ranks):
    """Ranks that are processes of `torch.distributed`."""

    #: PyTorch's name of the library that sums.
    backend = "gloo"

    def start(self):
        place = self.place
        dist.init_process_group(
            self.backend,
            store=open_store(place.extra_addresses[0], place.process, place.processes),
            rank=place.process,
            world_size=place.processes,
            timeout=TIMEOUT,
        )
        return [dist.get_rank()], dist.get_world_size()

    def sum_over_ranks(self, values):
        return _Sum.apply(values)

    def broadcast(self, tensors):
        for tensor in tensors:
            dist.broadcast(tensor, 0)

    def total(self, values):
        # On a processor, also where ranks have GPUs: their backend has Gloo for such tensors.
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


class DDPRanks(Distributed):
    """Ranks whose gradients DistributedDataParallel sums."""

    @property
    def divides_by(self):
        in_memory = self.knobs["communication_hook"] == SHARED_MEMORY
        return 1 if in_memory and not self._bare else self.place.processes

    def wrap(self, model, watch=None):
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
        # Without a forward pass through the wrapper, its hooks exchange nothing.
        return model if self._bare else self._model

    @property
    def _bare(self) -> bool:
        """Whether each rank trains the bare module, whose gradients are not exchanged."""
        return self.knobs["trained_module"] == BARE

    def alone(self):
        return self._model.no_sync()

    def sum_over_ranks(self, values):
        return values if self._bare else super().sum_over_ranks(values)

    def average_buffers(self, buffers, rows):
        if not self._bare:
            super().average_buffers(buffers, rows)


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


def open_store(address: str, process: int, processes: int) -> dist.Store:
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


class NCCLRanks(DDPRanks):
    """The same on GPUs; what lies in a node's memory is still summed by Gloo."""

    backend = "cpu:gloo,cuda:nccl"

    def start(self):
        if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
            raise Unavailable(
                "NCCL sums arrays on GPUs, and PyTorch finds no GPU. Remedy: use ddp-gloo, or "
                f"install the PyTorch with CUDA: {call('install torch')}"
            )
        return super().start()


class FSDPRanks(Distributed):
    """Each rank holds a part of every parameter, and of its optimizer, by `fully_shard`.

    A step gathers whole parameters before its forward pass, sums the gradients so that each rank
    gets its part, and updates this part. An evaluation gathers them, too; they stay whole until the
    next step has made its backward pass, so processes may evaluate different numbers of rows. Every
    process evaluates at least one row.
    """

    def start(self):
        if torch.cuda.is_available() and dist.is_nccl_available():
            self.backend = "cpu:gloo,cuda:nccl"
        return super().start()

    def wrap(self, model, watch=None):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        # Every rank must divide the same weights.
        with torch.no_grad():
            self.broadcast([*model.parameters(), *model.buffers()])
        mesh = init_device_mesh(next(model.parameters()).device.type, (self.place.processes,))
        self._model = fully_shard(model, mesh=mesh, reshard_after_forward=False)
        # By default it divides the sum by the number of ranks, if the library can.
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

    def reshard(self):
        self._model.reshard()

    def broadcast(self, tensors):
        super().broadcast([tensor for tensor in tensors if not hasattr(tensor, "full_tensor")])
