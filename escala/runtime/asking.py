"""Programs on the nodes of a run: describe the nodes, look for lost nodes, time a link."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from escala.core import children, variables
from escala.core.console import say
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.runtime import allocation, slurm
from escala.runtime.allocation import step
from escala.runtime.layout import Launch, Node
from escala.runtime.mpi import cause, project_mpi
from escala.runtime.node import LOOPBACK, MARK, describe
from escala.runtime.slurm import same_host
from escala.runtime.spawn import HOST

_SURVEY_SECONDS = 120
#: Seconds in which a node must start `true`, or it is lost. SLURM waits 10 seconds for a message.
_ANSWER_SECONDS = 30


def step_environment(job: str) -> dict[str, str]:
    by_slurm = allocation.by_slurm()
    return variables.for_ranks() | ({"SLURM_JOB_ID": job} if by_slurm else {})


def describe_nodes(
    job: str, count: int, names: Sequence[str], interface: str | None, ports: int, mpi: bool
) -> tuple[list[Node], int]:
    """Run `escala.runtime.node` on each node of a run, without MPI if `srun` does not support it.

    A node has only the cores that the job has there, as far as its scheduler counts them.

    Parameters
    ----------
    names : the names of the nodes. If empty, the first `count` nodes of the job are taken.

    Returns
    -------
    The nodes, and the number of processes that MPI joined.
    """
    program = [sys.executable, "-m", "escala.runtime.node", "--ports", str(ports)]
    program += ["--interface", interface] if interface else []
    kinds, by_slurm = ["none"], allocation.by_slurm()
    if by_slurm:
        nodes = ",".join(names) or slurm.ask_job(job).nodes
        program += ["--addresses", json.dumps(_addresses(nodes))]
        if mpi and "pmix" in slurm.output_of(["srun", "--mpi=list"]):
            kinds.insert(0, "pmix")
    environment = step_environment(job) | project_mpi()
    for kind in kinds:
        command = [*step(job, count, count, names, kind), *program]
        command += ["--mpi"] if kind == "pmix" else []
        try:
            done = children.capture(command, env=environment, timeout=_SURVEY_SECONDS)
        except subprocess.TimeoutExpired:
            why = f"no answer in {_SURVEY_SECONDS} seconds"
            continue
        why = cause(done.stderr if by_slurm else done.stderr + done.stdout)
        lines = [line for line in done.stdout.splitlines() if MARK in line]
        if done.returncode == 0 and len(lines) == count:
            break
    else:
        raise RuntimeError(f"{'srun' if by_slurm else 'ssh'} failed on the nodes: {why}")
    answers = [json.loads(line.partition(MARK)[2]) for line in lines]
    answers.sort(key=lambda node: node.pop("number"))
    world = min((node.pop("world") or 1) for node in answers)
    cores = allocation.cores_by_host()
    nodes = [Node(**node) for node in answers]
    return [replace(node, cores=node.cores[: cores.get(node.host)]) for node in nodes], world


def address_here(nodes: Sequence[Node], interface: str | None) -> str:
    """Return the address of this machine, a node or not, for the nodes of a run."""
    host = socket.gethostname()
    for node in nodes:
        if same_host(node.host, host):
            return node.address
    across = None if interface == LOOPBACK else interface
    name = os.environ.get("SLURMD_NODENAME") or host.partition(".")[0]
    known = _addresses(name).get(name) if allocation.by_slurm() else None
    return describe(across, 0, known).address


def find_silent_nodes(names: Sequence[str]) -> list[str]:
    """Return the nodes in `names`, which are nodes of this job, that no longer start a process."""
    job = allocation.job_number()

    def answers(name: str) -> bool:
        command = [*step(job, 1, 1, [name]), "true"]
        try:
            done = children.capture(command, env=step_environment(job), timeout=_ANSWER_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    # The nodes are tested at the same time, because each lost node takes the whole time.
    with ThreadPoolExecutor(len(names) or 1) as pool:
        are_answering = pool.map(answers, names)
        return [name for name, answer in zip(names, are_answering, strict=True) if not answer]


def require_answers(names: Sequence[str]) -> None:
    """Refuse to record a run as failed if the job has lost one of its nodes.

    Parameters
    ----------
    names : the nodes of the job that the run was given; empty if it was given no nodes.

    Raises
    ------
    InputError : a node is lost. The message has the remedy.
    """
    if lost := find_silent_nodes(names):
        remedy = "the same call, or the same script, goes on in a job with other nodes"
        if not allocation.by_slurm():
            remedy = f"see why: ssh {lost[0]} true; then the same call goes on"
        raise InputError(
            "job",
            allocation.job_number(),
            f"no longer has {', '.join(lost)}, where nothing can be started: the run is not "
            "recorded, and what was measured before is kept",
            remedy,
        )


def _addresses(nodes: str) -> dict[str, str]:
    """Return the address of each node of a list such as `n[1-4]`, as SLURM knows it."""
    listed = slurm.output_of(["scontrol", "--oneliner", "show", "node", nodes]) if nodes else ""
    return dict(re.findall(r"NodeName=(\S+).*?NodeAddr=(\S+)", listed))


#: The value of `measured_by` of a link in a run.json.
LINK_MEASURED_BY = "tcp"
#: The beginning of the line that each end of a link prints.
LINK_MARK = "escala-link "
_PINGS, _BLOCK = 200, 2**20
#: Seconds in which bytes do not count, because the window of the connection grows; seconds in
#: which they count.
_OMITTED_SECONDS, _COUNTED_SECONDS = 0.3, 1.0
_PATIENCE_SECONDS, _STEP_SECONDS = 30, 120


def measure_link(launch: Launch, file: Path) -> dict[str, float | None]:
    """Return `mbit_per_second` and `latency_ms` of a link; None for a value that was not measured.

    Parameters
    ----------
    launch : a launch on several nodes of a job.
    file : keeps both numbers for the job and the interface.
    """
    if file.exists():
        return read_json(file)
    first, second, *_ = launch.nodes
    program = [sys.executable, "-m", __name__, "--ends", first.host, second.host]
    program += ["--address", first.address, "--port", str(first.ports[0])]
    count = len(launch.nodes)
    link: dict[str, float | None] = {"mbit_per_second": None, "latency_ms": None}
    try:
        done = children.capture(
            [*step(launch.job, count, count, launch.names), *program],
            env=step_environment(launch.job),
            timeout=_STEP_SECONDS,
        )
        for line in done.stdout.splitlines():
            if LINK_MARK in line:
                link |= json.loads(line.partition(LINK_MARK)[2])
        why = done.stderr.strip().splitlines()[-1:]
    except (OSError, subprocess.TimeoutExpired) as error:
        why = [str(error)]
    if None in link.values():
        say(f"The link between {first.host} and {second.host} was not measured: {' '.join(why)}")
    else:
        # Only a measured link is kept. Without the file, a later run of the job tries again.
        write_json(file, link)
    return link


def serve(address: str, port: int) -> dict[str, float]:
    """Answer the other end of a link; return `mbit_per_second` of its bytes, if it was timed."""
    with socket.create_server((address, port)) as listening:
        listening.settimeout(_PATIENCE_SECONDS)
        connection, _ = listening.accept()
    with connection:
        _set_options(connection)
        for _ in range(_PINGS):
            connection.sendall(connection.recv(1))
        buffer, first, began, last, received = bytearray(_BLOCK), None, None, None, 0
        while count := connection.recv_into(buffer):
            last = time.monotonic()
            first = first or last
            if began is not None:
                received += count
            elif last - first >= _OMITTED_SECONDS:
                began = last
        counted = began is not None and last > began
        return {"mbit_per_second": 8 * received / (last - began) / 1e6} if counted else {}


def connect(address: str, port: int) -> dict[str, float]:
    """Return `latency_ms`, the median round trip of a byte; then send blocks for some time."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:  # The other end may not listen yet.
        try:
            connection = socket.create_connection((address, port), timeout=_PATIENCE_SECONDS)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    with connection:
        _set_options(connection)
        seconds = []
        for _ in range(_PINGS):
            began = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            seconds.append(time.perf_counter() - began)
        block, end = bytes(_BLOCK), time.monotonic() + _OMITTED_SECONDS + _COUNTED_SECONDS
        while time.monotonic() < end:
            connection.sendall(block)
        # The end that closes first keeps its port for a while. It must be the client, because ranks
        # of the run will listen on the port of the server.
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    return {"latency_ms": 1e3 * statistics.median(seconds)}


def _set_options(connection: socket.socket) -> None:
    connection.settimeout(_PATIENCE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ends", nargs=2, required=True, metavar="HOST")
    parser.add_argument("--address", required=True, help="that the first end listens on")
    parser.add_argument("--port", required=True, type=int)
    arguments = parser.parse_args()
    here = os.environ.get(HOST) or socket.gethostname()
    ends = [slurm.same_host(here, end) for end in arguments.ends]
    if any(ends):
        act = serve if ends[0] else connect
        line = LINK_MARK + json.dumps(act(arguments.address, arguments.port))
        print(f"{line}\n", end="", flush=True)


if __name__ == "__main__":
    main()
