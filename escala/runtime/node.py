"""Describe one machine of a run: `python -m escala.runtime.node`, started on each node.

It prints one line, a JSON object: the fields of `escala.runtime.layout.Node`; and on request
`world`, the number of processes that MPI joined.
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
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from escala.core import hardware, proc
from escala.core.errors import InputError
from escala.core.hardware import available_cores
from escala.core.speed import speed_seconds
from escala.runtime.allocation import same_host
from escala.runtime.layout import Node

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

    Open MPI 4's names for the communicator and the calls, `mpi.h`.
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
    name = os.environ.get("SLURMD_NODENAME", socket.gethostname())
    try:
        node = describe(arguments.interface, arguments.ports, arguments.addresses.get(name))
        if same_host(name, node.host):
            # SLURM's programs take its name only as SLURM writes it, without or with a domain.
            node = replace(node, host=name)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    world = mpi_world() if arguments.mpi else None
    number = int(os.environ.get("SLURM_NODEID", 0))
    print(MARK + json.dumps(asdict(node) | {"world": world, "number": number}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
