"""Ask the nodes of a run by a job step: to describe themselves, or whether they still answer."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from escala.core import children, variables
from escala.core.errors import InputError
from escala.runtime import allocation, slurm
from escala.runtime.allocation import number, same_host, srun
from escala.runtime.layout import Layout
from escala.runtime.messages import cause
from escala.runtime.mpi import own_mpi
from escala.runtime.node import LOOPBACK, MARK, describe
from escala.runtime.placement import Node

_SURVEY_SECONDS = 120
#: A node that takes longer to start `true` is lost: SLURM itself waits 10 seconds for a message.
_ANSWER_SECONDS = 30


def step_environment(job: str) -> dict[str, str]:
    return variables.passed() | {"SLURM_JOB_ID": job}


@dataclass(frozen=True)
class Asking:
    """A job step that describes each node of a run."""

    job: str
    layout: Layout
    names: tuple[str, ...]
    interface: str | None
    ports: int

    def nodes(self, mpi: bool) -> tuple[list[Node], int | None]:
        """Run `escala.runtime.node` on each node, without MPI if `srun` does not support it.

        Returns
        -------
        The nodes, and the number of processes that MPI joined.
        """
        program = [sys.executable, "-m", "escala.runtime.node", "--ports", str(self.ports)]
        nodes = ",".join(self.names) or allocation.job_of(self.job).nodes
        program += ["--addresses", json.dumps(_addresses(nodes))]
        program += ["--interface", self.interface] if self.interface else []
        count = self.layout.nodes
        base = [*srun(self.job, count, count, self.names), "--overlap"]
        calls = [[*base, "--mpi=none", *program]]
        if mpi and "pmix" in slurm.printed(["srun", "--mpi=list"]):
            calls.insert(0, [*base, "--mpi=pmix", *program, "--mpi"])
        environment = step_environment(self.job) | own_mpi()
        for call in calls:
            done = children.completed(call, env=environment, timeout=_SURVEY_SECONDS)
            lines = [line for line in done.stdout.splitlines() if MARK in line]
            if done.returncode == 0 and len(lines) == count:
                break
        else:
            raise RuntimeError(f"srun failed on the nodes: {cause(done.stderr)}")
        said = [json.loads(line.partition(MARK)[2]) for line in lines]
        said.sort(key=lambda node: node.pop("number"))
        world = min((node.pop("world") or 1) for node in said)
        return [Node(**node) for node in said], world

    def here(self, nodes: Sequence[Node]) -> str:
        """Return the address by which the nodes of a run reach this machine, one of them or not."""
        host = socket.gethostname()
        for node in nodes:
            if same_host(node.host, host):
                return node.address
        across = None if self.interface == LOOPBACK else self.interface
        name = os.environ.get("SLURMD_NODENAME") or host.partition(".")[0]
        return describe(across, 0, _addresses(name).get(name)).address


def silent(names: Sequence[str]) -> list[str]:
    """Return those of some nodes of this job that do not start a process any more."""
    if not names:
        return []
    # All at once: each lost node takes the whole time.
    with ThreadPoolExecutor(len(names)) as pool:
        answers = pool.map(lambda name: _answers(number(), name), names)
    return [name for name, answer in zip(names, answers, strict=True) if not answer]


def _answers(job: str, name: str) -> bool:
    step = [*srun(job, 1, 1, [name]), "--overlap", "--mpi=none", "true"]
    try:
        done = children.completed(step, env=step_environment(job), timeout=_ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def require_answers(names: Sequence[str]) -> None:
    """Refuse to take a run for failed if the job has lost one of its nodes.

    Parameters
    ----------
    names : the nodes of the job that the run was given; empty if it was given none.

    Raises
    ------
    InputError : a node is silent; with the remedy.
    """
    if lost := silent(names):
        raise InputError(
            "SLURM_JOB_ID",
            number(),
            f"no longer has {', '.join(lost)}, where nothing can be started: the run is not "
            "recorded, and what was measured before is kept",
            "the same call, or the same script, goes on in a job with other nodes",
        )


def _addresses(nodes: str) -> dict[str, str]:
    """Return the address of each node of a list such as `n[1-4]`, as SLURM knows it."""
    listed = slurm.printed(["scontrol", "--oneliner", "show", "node", nodes]) if nodes else ""
    return dict(re.findall(r"NodeName=(\S+).*?NodeAddr=(\S+)", listed))
