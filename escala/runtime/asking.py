"""Ask the nodes of a run to describe themselves, by a job step."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from escala.core import children, variables
from escala.runtime import slurm
from escala.runtime.allocation import srun
from escala.runtime.layout import Layout
from escala.runtime.messages import cause
from escala.runtime.mpi import own_mpi
from escala.runtime.node import LOOPBACK, MARK, describe
from escala.runtime.placement import Node

_SURVEY_SECONDS = 120


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
        program += ["--addresses", json.dumps(_addresses())]
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
            if node.host == host:
                return node.address
        across = None if self.interface == LOOPBACK else self.interface
        known = _addresses().get(os.environ.get("SLURMD_NODENAME", host))
        return describe(across, 0, known).address


def _addresses() -> dict[str, str]:
    """Return the address of every node of the cluster, as SLURM knows it."""
    listed = slurm.printed(["scontrol", "--oneliner", "show", "nodes"])
    return dict(re.findall(r"NodeName=(\S+).*?NodeAddr=(\S+)", listed))
