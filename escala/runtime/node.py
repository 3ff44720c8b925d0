"""Describe one machine of a run: `python -m escala.runtime.node`, started on each node.

It prints one line, a JSON object: the fields of `escala.runtime.layout.Node`; `number`, the
number of the node; and `world`, the number of processes that MPI joined, null if not requested.

The seconds of a fixed kernel tell how fast its cores are. The kernel repeats a *round* `ROUNDS`
times, about 50 ms in all on a processor of 2023. A round adds a vector, which fits into the cache
of a core, to a sum 400 times. Then it copies 8 MiB, which do not fit. So the kernel shows the clock
rate, and what others leave of the memory. Each half of a round is one call of NumPy, which holds no
lock of Python and starts no threads.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from escala.core import hardware, proc
from escala.core.errors import InputError
from escala.core.hardware import available_cores
from escala.runtime.layout import Node
from escala.runtime.slurm import same_host
from escala.runtime.spawn import HOST, process_of_environment

#: The interface between ranks on one node.
LOOPBACK = "lo"
#: The first port that ranks listen on. Lower ports are those of known services.
FIRST_PORT = 10_000
#: The file with the range of ephemeral ports. A program that chooses no port gets such a port.
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: The beginning of the line. A scheduler may print other lines.
MARK = "escala-node "


def describe(interface: str | None, ports: int, address: str | None = None) -> Node:
    """Return the description of this machine for a run.

    Parameters
    ----------
    interface : the network interface to use. Default: the interface with `address`.
    ports : number of free ports to return.
    address : the address by which the scheduler knows this machine.

    Raises
    ------
    InputError : the interface does not exist, or has no IPv4 address.
    """
    by_interface = {
        name: [entry.address for entry in addresses if entry.family == socket.AF_INET]
        for name, addresses in psutil.net_if_addrs().items()
    }
    host = socket.gethostname()
    if interface is None:
        with contextlib.suppress(OSError):
            address = socket.gethostbyname(address or host)
        interface = next(
            (name for name, addresses in by_interface.items() if address in addresses), None
        )
    if interface == LOOPBACK and not by_interface.get(LOOPBACK):
        raise InputError(
            f"network on {host}",
            LOOPBACK,
            "is down: the ranks of one machine exchange over it",
            "as root: ip link set lo up",
        )
    if not by_interface.get(interface):
        known = ", ".join(name for name, addresses in by_interface.items() if addresses)
        raise InputError(
            f"networks: interface on {host}",
            interface,
            "has no IPv4 address there",
            f"name one of {known}",
        )
    address = by_interface[interface][0]
    cores = available_cores()
    machine = hardware.describe() | {"speed_seconds": speed_seconds(cores[0])}
    single_copy = proc.can_read_child()
    free_ports = _find_free_ports(address, ports)
    return Node(host, interface, address, cores, free_ports, machine, single_copy)


def _find_free_ports(address: str, count: int) -> list[int]:
    """Return free ports. They are ephemeral only if there are too few other free ports.

    The ranks listen on the ports seconds later. By then, Linux may have given an ephemeral port to
    another program, such as srun.
    """
    first, last = map(int, EPHEMERAL_PORTS.read_text(encoding="utf-8").split())
    fixed = [*range(FIRST_PORT, first), *range(max(last + 1, FIRST_PORT), 2**16)]
    with contextlib.ExitStack() as stack:
        numbers = []
        for port in random.sample(fixed, len(fixed)):
            if len(numbers) == count:
                break
            with contextlib.suppress(OSError):
                stack.enter_context(_bind(address, port))
                numbers.append(port)
        while len(numbers) < count:
            ephemeral = stack.enter_context(_bind(address, 0))
            numbers.append(ephemeral.getsockname()[1])
        return numbers


def _bind(address: str, port: int) -> socket.socket:
    """Return a socket that is bound to a port. With port 0, the kernel chooses a port.

    Raises
    ------
    OSError : the port is not free, or this machine does not have the address.
    """
    bound = socket.socket()
    try:
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


def mpi_world() -> int:
    """Return the number of processes in the MPI world of this process; 1 without MPI support.

    The names of the communicator and of the calls are those of Open MPI 4 (`mpi.h`).
    """
    library = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    library.MPI_Init(None, None)
    world, size = ctypes.byref(ctypes.c_char.in_dll(library, "ompi_mpi_comm_world")), ctypes.c_int()
    library.MPI_Comm_size(world, ctypes.byref(size))
    library.MPI_Finalize()
    return size.value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interface")
    parser.add_argument("--ports", type=int, required=True)
    parser.add_argument("--addresses", type=json.loads, default={}, metavar="JSON")
    parser.add_argument(
        "--mpi", action="store_true", help="join the processes of the other nodes through MPI"
    )
    arguments = parser.parse_args()
    # What starts processes takes the name only as the scheduler or the user writes it.
    named = os.environ.get(HOST) or os.environ.get("SLURMD_NODENAME")
    name = named or socket.gethostname()
    # ssh names its two ends: address and port of the client, and then of this machine.
    reached = os.environ.get("SSH_CONNECTION", "").split()[2:3] if HOST in os.environ else []
    address = next(iter(reached), arguments.addresses.get(name))
    try:
        node = describe(arguments.interface, arguments.ports, address)
        if HOST in os.environ or same_host(name, node.host):
            node = replace(node, host=name)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    world = mpi_world() if arguments.mpi else None
    number = process_of_environment()  # One process describes a node.
    line = MARK + json.dumps(asdict(node) | {"world": world, "number": number})
    # In one write, because others write into the same pipe.
    print(f"{line}\n", end="", flush=True)
    return 0


ROUNDS = 20
#: Elements of the vector, how often a round adds it, and elements of the copy.
_ADDED, _TIMES, _COPIED = 2**15, 400, 2**21
#: The number of kernels from which `speed_seconds` takes the fastest sum.
_SPEED_KERNELS = 2


class Seconds(NamedTuple):
    """The time of the kernel on one core.

    Attributes
    ----------
    wall : from the beginning of the kernel to its end. Other work on the core lengthens this time.
    cpu : the time on the core. A lower clock rate, other hardware threads of the core, other users
        of the memory and, on most virtual machines, other machines on the core lengthen this time.
    least : the time of the fastest sum of a round on the core, about 1.7 ms. It shows the speed of
        the core, without most of these influences.
    """

    wall: float
    cpu: float
    least: float


def seconds_of_kernel(cores: Sequence[int]) -> list[Seconds]:
    """Run the kernel at the same time on several cores, which this process must be able to use.

    Returns
    -------
    The seconds of each core, in the order of `cores`.

    Raises
    ------
    ValueError : this process may not use one of the cores.
    """
    if missing := set(cores) - os.sched_getaffinity(0):
        raise ValueError(f"cores that this process may not use: {sorted(missing)}")
    seconds: dict[int, Seconds] = {}
    together = threading.Barrier(len(cores))

    def measure(core: int) -> None:
        os.sched_setaffinity(0, {core})  # This binds only this thread.
        vector = np.broadcast_to(np.ones(_ADDED, np.float32), (_TIMES, _ADDED))
        total, source = np.zeros(_ADDED, np.float32), np.ones(_COPIED, np.float32)
        target = source.copy()  # The system clears the pages of `target` before the time begins.
        cpu, sums = 0.0, []
        together.wait()
        began = time.perf_counter()
        for _ in range(ROUNDS):
            before = time.thread_time()
            np.add.reduce(vector, axis=0, out=total)
            added = time.thread_time()
            np.copyto(target, source)
            sums.append(added - before)
            cpu += time.thread_time() - before
        seconds[core] = Seconds(time.perf_counter() - began, cpu, min(sums))

    threads = [threading.Thread(target=measure, args=(core,)) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [seconds[core] for core in cores]


def speed_seconds(core: int) -> float:
    """Return the seconds of the fastest sum of `_SPEED_KERNELS` kernels: the speed of a core.

    This takes about 0.1 s.
    """
    return min(seconds_of_kernel([core])[0].least for _ in range(_SPEED_KERNELS))


if __name__ == "__main__":
    raise SystemExit(main())
