"""Time sums of gradients in the library of a program, and how ranks slow each other down.

    python escala_collectives.py LIBRARY BYTES…      LIBRARY: torch, horovod, mpi or none

For predictions, Escala starts this script in place of the program, by the program's interpreter.
Through `escala_steps` it reports `allreduce_BYTES`, in seconds, and `beside_…`, the factor by which
a piece of work takes longer while all ranks do it. It needs Python 3.8 or later, and the library.

Each `by_LIBRARY` joins the ranks. It returns the rank, the number of ranks, and `prepare(bytes)`.
The result of `prepare` is a function that sums this many bytes over all ranks.
"""

import array
import os
import socket
import statistics
import sys
import time

ROUNDS, CALLS, BYTES = 5, 20, 1 << 25
#: The rows of square matrices, and the floating-point operations of the product of two of them.
SIZE = 512
OPERATIONS = 2 * SIZE**3


def by_torch():
    import torch
    import torch.distributed as dist

    gpu = torch.cuda.is_available()
    gpus = torch.cuda.device_count() if gpu else 0
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % gpus)
    # Ranks may share a GPU, which NCCL refuses.
    dist.init_process_group("nccl" if gpus >= int(os.environ["LOCAL_WORLD_SIZE"]) else "gloo")

    def prepare(size):
        values = torch.zeros(size // 4, device="cuda" if gpu else "cpu")

        def call():
            dist.all_reduce(values)
            if gpu:
                torch.cuda.synchronize()

        return call

    return dist.get_rank(), dist.get_world_size(), prepare


def by_horovod():
    try:
        import horovod.torch as hvd
        from torch import zeros
    except ImportError:
        import horovod.tensorflow as hvd
        from tensorflow import zeros
    hvd.init()

    def prepare(size):
        values, name = zeros([size // 4]), "sum%d" % size
        return lambda: hvd.allreduce(values, name=name, op=hvd.Sum)

    return hvd.rank(), hvd.size(), prepare


def by_mpi():
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def prepare(size):
        sent, received = array.array("f", bytes(size)), array.array("f", bytes(size))
        return lambda: world.Allreduce([sent, MPI.FLOAT], [received, MPI.FLOAT])

    return world.Get_rank(), world.Get_size(), prepare


def by_none():
    """Let processes meet at a socket. Without a library, they sum nothing."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        with socket.create_server(place, backlog=ranks) as server:
            others = [server.accept()[0] for _ in range(ranks - 1)]
    else:
        for _ in range(600):
            try:
                others = [socket.create_connection(place)]
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise SystemExit("rank 0 does not answer")

    def meet():
        for other in others:
            (other.recv(1) if rank == 0 else other.sendall(b"."))
        for other in others:
            (other.sendall(b".") if rank == 0 else other.recv(1))

    return rank, ranks, lambda size: meet


def pieces():
    """Return pieces of work of some milliseconds by name; `product` needs NumPy."""
    source, target = bytearray(BYTES), bytearray(BYTES)

    def copy():
        target[:] = source

    def count():
        sum(range(1 << 19))

    by_name = {"copy": copy, "count": count}
    try:
        import numpy

        values = numpy.ones((SIZE, SIZE), numpy.float32)
        by_name["product"] = lambda: values @ values
    except ImportError:
        pass
    return by_name


def seconds(call):
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def slow_down(call, rank, ranks, meet):
    """Return the time of a piece of work while all ranks do it, divided by its time alone."""
    ratios = []
    for _ in range(ROUNDS):
        for turn in range(ranks):
            meet()
            if turn == rank:
                call()
                alone = statistics.median(seconds(call) for _ in range(5))
        meet()
        call()
        ratios.append(statistics.median(seconds(call) for _ in range(5)) / alone)
    return statistics.median(ratios)


def main():
    library, sizes = sys.argv[1], [int(size) for size in sys.argv[2:]]
    rank, ranks, prepare = globals()["by_" + library]()
    scores, meet = {}, prepare(4)
    for size in sizes if library != "none" else ():
        call = prepare(size)
        call()
        meet()
        times = [seconds(call) for _ in range(max(5, min(CALLS, BYTES // size)))]
        scores["allreduce_%d" % size] = statistics.median(times)
    for name, call in pieces().items():
        scores["beside_" + name] = slow_down(call, rank, ranks, meet)
    meet()
    if rank == 0:
        from escala_steps import score

        score(**scores)


if __name__ == "__main__":
    main()
