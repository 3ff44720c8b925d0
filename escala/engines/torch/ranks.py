"""The processes of a run under PyTorch: how processes join, exchange gradients and agree.

A communication hook can sum gradients in memory shared by the ranks of a node. The hook only notes
a bucket, until the last bucket of a step. Then it copies all buckets into the rank's part of the
memory, sets a counter, and waits for the counters of all ranks. It sums the parts in the order of
the ranks, so all ranks get equal numbers. Nothing is exchanged while gradients are computed,
because a copy needs the core that computes gradients.

By a second counter a rank says that it has read all parts. A rank writes its part again only when
this counter of every rank has reached the step. Other ranks must see the copied part before they
see the counter that announces it. Processors of x86-64 keep this order of writes. Python cannot
request this order from other processors, so these are refused.
"""

from __future__ import annotations

import mmap
import platform
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import timedelta
from inspect import signature

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from escala.core.environment import call
from escala.core.errors import Unavailable
from escala.engines.base import Group
from escala.engines.torch.strategies import BARE, SHARED_MEMORY

#: The longest wait of a rank for the start of other ranks, and for each exchange: PyTorch's
#: default.
TIMEOUT = timedelta(minutes=30)
#: Hooks that round gradients, by the value of `communication_hook`. Other values have no hook here.
_ROUNDING = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
#: The argument that lets each forward pass begin with the buffers of rank 0. The name depends on
#: PyTorch's release.
_SYNC_ARGUMENT = "broadcast_buffers"
if "forward_sync_buffers" in signature(DistributedDataParallel).parameters:
    _SYNC_ARGUMENT = "forward_sync_buffers"
#: Groups that have ended, kept until the end of the process. Otherwise a model may have the last
#: reference to a group. Deleting the model would then wait for Gloo's threads and hold Python's
#: lock. These threads may need the lock to delete a tensor, so both would wait for ever (seen with
#: PyTorch 2.13).
_ENDED: list[dist.ProcessGroup] = []


class Ranks(Group):
    """One process of a run, and how its ranks exchange inside PyTorch.

    This base class is for the only rank of a run.

    Attributes
    ----------
    divides_by : the number by which the exchange divides the sum of the gradients.
    """

    divides_by = 1

    def wrap(self, model: nn.Module, watch: Callable | None = None) -> nn.Module:
        """Return the module that steps call in place of the model, to exchange gradients.

        This is called once, before the optimizer is built. The module must leave the model's
        buffers to `average_buffers`; by default, PyTorch's wrappers send the buffers of rank 0.

        Parameters
        ----------
        watch : `watch_exchange` of a recorder (see `StepFunctions`); None in timing runs.
        """
        return model

    def alone(self) -> AbstractContextManager:
        """Return the context of forward and backward passes whose gradients are not exchanged."""
        return nullcontext()

    def sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over all ranks inside a step, with its gradient.

        Every rank must call this.
        """
        return values

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copy the values of rank 0 to every rank."""

    def average_buffers(self, buffers: Sequence[torch.Tensor], rows: int) -> None:
        """Set the buffers of all ranks to their mean, weighted by the rows of each rank.

        A rank without rows has not updated its buffers, and has weight 0. Every process calls this.

        Parameters
        ----------
        rows : number of rows of this rank in the epoch.
        """
        copy = [buffer.double().cpu().numpy() for buffer in buffers]
        for buffer, mean in zip(buffers, self.mean([copy], [rows]), strict=True):
            buffer.copy_(torch.from_numpy(mean))

    def reshard(self) -> None:
        """If the strategy divides parameters, let this rank hold only its part of each."""


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
        # The tensor is on the processor, for which the backend of GPUs also has Gloo.
        summed = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(summed)
        return summed.numpy()

    def collective(self, operation, size):
        # Strategies of PyTorch use allreduce only.
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
        # `Sums` adds without a division, and DDP divides by the processes. A bare module exchanges
        # nothing; with this factor its gradient is the mean over its own rows.
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
            **{_SYNC_ARGUMENT: False},
        )
        state, hook = None, _ROUNDING.get(knobs["communication_hook"])
        if knobs["communication_hook"] == SHARED_MEMORY:
            state, hook = Sums(self, model, TIMEOUT), sum_bucket
        if watch:
            hook = watch(hook or default_hooks.allreduce_hook)
        if hook:
            self._model.register_comm_hook(state, hook)
        # The wrapper's hooks exchange nothing without a forward pass through the wrapper.
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
    """Return the store by which processes find each other; the first process serves it.

    The store listens on one address of the run's network; by default PyTorch listens on all
    addresses. The port is bound here, so that no other program can take it before the store.

    Parameters
    ----------
    address : `ADDRESS:PORT` on the first node; the port was free.

    Raises
    ------
    OSError : another program has taken the port.
    """
    host, port = address.rsplit(":", 1)
    if process:
        return dist.TCPStore(host, int(port), processes, False, TIMEOUT)
    with closing(socket.create_server((host, int(port)), backlog=processes)) as server:
        return dist.TCPStore(
            host, int(port), processes, True, TIMEOUT, master_listen_fd=server.detach()
        )


class NCCLRanks(DDPRanks):
    """DistributedDataParallel on GPUs by NCCL. Gloo still sums tensors in a node's memory."""

    backend = "cpu:gloo,cuda:nccl"

    def start(self):
        if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
            raise Unavailable(
                "NCCL sums arrays on GPUs, and PyTorch finds no GPU. Remedy: use ddp-gloo, or "
                f"install the PyTorch with CUDA: {call('install torch')}"
            )
        return super().start()


class FSDPRanks(Distributed):
    """Ranks that hold a part of every parameter and of the optimizer's values, by `fully_shard`.

    A step gathers whole parameters before its forward pass, sums the gradients so that each rank
    gets its part, and updates this part. An evaluation also gathers the parameters. They stay whole
    until the next backward pass, so processes may evaluate different numbers of rows. Every process
    evaluates at least one row.
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
        # By default FSDP divides the sum by the number of ranks, if the library can do so.
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


#: The knob's value that needs no shared memory.
INSTEAD = "communication_hook: none"
#: Names of the processors that keep the order of writes, as `platform.machine` gives them.
_ORDERED = ("x86_64", "AMD64")
#: Reads of a counter, for about 50 µs, before a rank sleeps between reads; and seconds of a sleep.
READS, NAP = 1000, 5e-5
#: Bytes of a line of cache. A rank's counters, and each bucket, begin at a line.
_LINE = 64


class Sums:
    """Memory of the ranks of a node, by which they sum the gradients of a model.

    Every rank makes this object, and calls `add` with the same buckets in the same order.

    Parameters
    ----------
    ranks : the ranks. Each rank is a started process.
    longest : the longest time that a rank waits for other ranks in a step.

    Raises
    ------
    Unavailable : the ranks cannot share memory; the message has a remedy.
    """

    def __init__(self, ranks: Group, model: nn.Module, longest: timedelta):
        place = ranks.place
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        on_processors = all(weight.device.type == "cpu" for weight in trained)
        if place.nodes > 1 or not on_processors or platform.machine() not in _ORDERED:
            raise Unavailable(
                f"communication_hook: {SHARED_MEMORY} needs ranks on the x86-64 processors of one "
                f"node. Remedy: {INSTEAD}"
            )
        self._rank, self._longest, self._step = place.process, longest, 0
        # The bytes of all counters, and of one rank's part. A bucket holds whole gradients.
        counters = _LINE * place.processes
        size = sum(_in_lines(weight.nbytes) for weight in trained)
        memory = ranks.share_memory(
            lambda path: _map(path, counters + place.processes * size, place.process == 0),
            INSTEAD,
        )
        numbers = np.frombuffer(memory, np.int64, counters // 8).reshape(place.processes, -1)
        # For each rank, the last step whose gradients the rank has written, and the last step whose
        # gradients it has read.
        self._written, self._read = memoryview(numbers[:, 0]), memoryview(numbers[:, 1])
        parts = torch.frombuffer(memory, dtype=torch.uint8, offset=counters)
        self._parts = parts.view(place.processes, size)
        self._buckets: list[tuple[torch.Tensor, Future]] = []

    def add(self, bucket: dist.GradBucket) -> Future:
        """Return the future of a bucket's sum over all ranks; the last bucket of a step sets it."""
        future = Future()
        self._buckets.append((bucket.buffer(), future))
        if bucket.is_last():
            self._sum()
        return future

    def _sum(self) -> None:
        self._wait(self._read)
        parts, begin = [], 0
        for buffer, _ in self._buckets:
            parts.append(self._parts[:, begin : begin + buffer.nbytes].view(buffer.dtype))
            parts[-1][self._rank].copy_(buffer)
            begin += _in_lines(buffer.nbytes)
        self._step += 1
        self._written[self._rank] = self._step
        self._wait(self._written)
        for (buffer, future), rank_parts in zip(self._buckets, parts, strict=True):
            # `torch.sum` over the ranks takes ten times as long.
            total = rank_parts[0]
            for part in rank_parts[1:]:
                total = torch.add(total, part, out=buffer)
            future.set_result(buffer)
        self._read[self._rank] = self._step
        self._buckets = []

    def _wait(self, counters: memoryview) -> None:
        """Wait until the counters of all ranks have reached this rank's step."""
        ends = time.monotonic() + self._longest.total_seconds()
        for rank in range(len(counters)):
            reads = 0
            while counters[rank] < self._step:
                reads += 1
                if reads < READS:
                    continue
                time.sleep(NAP)
                if time.monotonic() > ends:
                    raise TimeoutError(
                        f"rank {self._rank} has waited {self._longest} for the gradients of rank "
                        f"{rank} in step {self._step}: does it still run? Its log is in `ranks/`"
                    )


# PyTorch refuses a hook whose annotations are strings, so there are none.
def sum_bucket(sums, bucket):
    """A communication hook: return the future of a bucket's sum. `sums` is the hook's state."""
    return sums.add(bucket)


def _in_lines(size: int) -> int:
    """Return a number of bytes, rounded up to whole lines of cache."""
    return -(-size // _LINE) * _LINE


def _map(path: str, size: int, first: bool) -> mmap.mmap:
    """Map a file as memory; the `first` rank sets the size of the file."""
    try:
        with open(path, "r+b") as file:
            if first:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except (OSError, ValueError) as error:
        raise Unavailable(f"no memory that ranks share: {error}. Remedy: {INSTEAD}") from error
