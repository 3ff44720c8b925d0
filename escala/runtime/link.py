"""Measure rate and latency between the first two nodes of a run, once in each job of SLURM.

`python -m escala.runtime.link --ends HOST,HOST --address … --port …` is a job step on all nodes of
a run. The first end serves: it answers single bytes, and then counts what one TCP connection
carries. So the rate is a lower one where a link is faster than one connection.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from escala.core import children
from escala.core.files import read_json, write_json
from escala.core.progress import say
from escala.runtime import allocation
from escala.runtime.asking import step_environment
from escala.runtime.launch import Launch

#: The word of `link.measured_by` in a run.json.
BY = "tcp"
#: Begins the line that an end prints.
MARK = "escala-link "
_PINGS, _BLOCK = 200, 2**20
#: Seconds in which the connection's window grows, which do not count, and in which bytes do.
_OMITTED, _COUNTED = 0.3, 1.0
_PATIENCE_SECONDS, _STEP_SECONDS = 30, 120


def measured(launch: Launch, known: Path) -> dict[str, float | None]:
    """Return `mbit_per_second` and `latency_ms`; None where they could not be measured.

    Parameters
    ----------
    launch : of several nodes, by a job of SLURM.
    known : the file that keeps them for the job and the interface.
    """
    if known.exists():
        return read_json(known)
    first, second, *_ = launch.nodes
    program = [sys.executable, "-m", __name__, "--ends", first.host, second.host]
    program += ["--address", first.address, "--port", str(first.ports[0])]
    count = len(launch.nodes)
    step = allocation.srun(launch.job, count, count, launch.names)
    found: dict[str, float | None] = {"mbit_per_second": None, "latency_ms": None}
    try:
        done = children.completed(
            [*step, "--overlap", "--mpi=none", *program],
            env=step_environment(launch.job),
            timeout=_STEP_SECONDS,
        )
        lines = [line.partition(MARK)[2] for line in done.stdout.splitlines() if MARK in line]
        for line in lines:
            found |= json.loads(line)
        why = done.stderr.strip().splitlines()[-1:]
    except (OSError, subprocess.TimeoutExpired) as error:
        why = [str(error)]
    if None in found.values():
        say(f"The link between {first.host} and {second.host} was not measured: {' '.join(why)}")
    else:  # A later run of the job tries again.
        write_json(known, found)
    return found


def serve(address: str, port: int) -> dict[str, float]:
    """Answer the other end, and return the rate at which its bytes arrived."""
    with socket.create_server((address, port)) as listening:
        listening.settimeout(_PATIENCE_SECONDS)
        connection, _ = listening.accept()
    with connection:
        _prepare(connection)
        for _ in range(_PINGS):
            connection.sendall(connection.recv(1))
        buffer, first, began, last, received = bytearray(_BLOCK), None, None, None, 0
        while count := connection.recv_into(buffer):
            last = time.monotonic()
            first = first or last
            if began is not None:
                received += count
            elif last - first >= _OMITTED:
                began = last
        counted = began is not None and last > began
        return {"mbit_per_second": 8 * received / (last - began) / 1e6} if counted else {}


def connect(address: str, port: int) -> dict[str, float]:
    """Time single bytes there and back, then send for some time; return the median of the times."""
    with _connected(address, port) as connection:
        _prepare(connection)
        seconds = []
        for _ in range(_PINGS):
            began = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            seconds.append(time.perf_counter() - began)
        block, end = bytes(_BLOCK), time.monotonic() + _OMITTED + _COUNTED
        while time.monotonic() < end:
            connection.sendall(block)
        # The end that closes first keeps its port for a while: not that of the server, which ranks
        # of the run will listen on.
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    return {"latency_ms": 1e3 * statistics.median(seconds)}


def _connected(address: str, port: int) -> socket.socket:
    """Return a connection to the other end, which may not listen yet."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return socket.create_connection((address, port), timeout=_PATIENCE_SECONDS)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(_PATIENCE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ends", nargs=2, required=True, metavar="HOST")
    parser.add_argument("--address", required=True, help="that the first end listens on")
    parser.add_argument("--port", required=True, type=int)
    arguments = parser.parse_args()
    here = socket.gethostname()
    ends = [allocation.same_host(here, end) for end in arguments.ends]
    if any(ends):
        act = serve if ends[0] else connect
        print(MARK + json.dumps(act(arguments.address, arguments.port)), flush=True)


if __name__ == "__main__":
    main()
