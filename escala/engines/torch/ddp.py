"""Ranks of PyTorch's DistributedDataParallel: gradients are summed by buckets while it computes."""

from __future__ import annotations

import socket
from contextlib import closing
from datetime import timedelta
from inspect import signature

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from escala.engines.torch.ranks import Ranks

#: How long a rank waits for the others to start, and for each exchange: PyTorch's own time.
TIMEOUT = timedelta(minutes=30)
#: The argument that lets each forward pass begin with the buffers of rank 0. Its name has changed.
_SYNCHRONISES = "broadcast_buffers"
if "forward_sync_buffers" in signature(DistributedDataParallel).parameters:
    _SYNCHRONISES = "forward_sync_buffers"


class DDP(Ranks):
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

    @property
    def divides_by(self):
        return self.place.processes

    def wrapped(self, model, watch=None):
        # Buffers are not rank 0's: the engine averages them at the end of an epoch.
        self._model = DistributedDataParallel(model, **{_SYNCHRONISES: False})
        if watch:
            self._model.register_comm_hook(None, watch(default_hooks.allreduce_hook))
        return self._model

    def alone(self):
        return self._model.no_sync()

    def broadcast(self, tensors):
        for tensor in tensors:
            dist.broadcast(tensor, 0)

    def total(self, values):
        # Backends of GPUs cannot sum what lies in the node's memory; this tensor is on a processor.
        summed = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(summed)
        return summed.numpy()

    def stop(self):
        dist.destroy_process_group()


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


RANKS = DDP
