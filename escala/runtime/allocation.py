"""The SLURM job that a call runs in, and the nodes of it that a run uses.

A call inside a job of several nodes starts every run as a job step, also a run of one node. The
nodes of the runs of a repeat are nested, so that both sides of a ratio share their nodes. They
begin with another node in each repeat. So each node serves as the one node, and what differs
between nodes is a part of the interval.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from escala.core.errors import InputError
from escala.runtime import slurm

#: Lines of `scontrol show job` begin so. A name or a comment, which may hold any text, stands after
#: another key, and within one line.
_LINES = {
    "submitted": r"^\s+SubmitTime=(\S+)",
    "started": r"^\s+StartTime=(\S+)",
    "ends": r"^\s+StartTime=\S+ EndTime=(\S+)",
    "nodes": r"^\s+NodeList=(\S+)",
    "shared": r"^\s+OverSubscribe=(\S+)",
    "output": r"^\s+StdOut=(.+)$",
}
#: Tasks of a job array that wait have its number too, and stand before those that run.
_WAITING = re.compile(r"^\s+JobState=PENDING", re.MULTILINE)
_VERSION = re.compile(r"^slurm\S*\s+(\S+)")


@dataclass(frozen=True)
class Job:
    """A job that SLURM has given nodes.

    Attributes
    ----------
    number : SLURM's number of it.
    nodes : the names of its nodes as SLURM writes them, such as `n[1-4]`; empty if unknown.
    exclusive : whether no other job may use its nodes; None if unknown.
    submitted, started, ends : in the local time of this machine; None if unknown, or without end.
    output : file of what it prints; None if unknown.
    """

    number: str
    nodes: str
    exclusive: bool | None
    submitted: datetime | None
    started: datetime | None
    ends: datetime | None
    output: str | None = None


def number() -> str | None:
    """Return SLURM's number of the job or the allocation of this process, or None."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SLURM_JOBID") or None


def parse_job(job: str, text: str) -> Job:
    """Read what `scontrol show job` prints of a job; its JSON form is not in all versions.

    Parameters
    ----------
    text : may be an error message, or lack lines; what it does not tell is unknown.
    """
    records = re.split(r"\n[ \t]*\n", text)
    records = [text for text in records if re.match(rf"\s*JobId={job}\b", text)] or records
    text = next((text for text in records if not _WAITING.search(text)), records[0])
    matches = {name: re.search(line, text, re.MULTILINE) for name, line in _LINES.items()}
    values = {name: match[1] if match else None for name, match in matches.items()}
    nodes, shared, output = (values.pop(name) for name in ("nodes", "shared", "output"))
    return Job(
        number=job,
        nodes="" if nodes in (None, "(null)") else nodes,
        # SLURM prints NO for a job that shares its nodes with no other one.
        exclusive=None if shared is None else shared == "NO",
        output=output,
        **{name: _time(value) for name, value in values.items()},
    )


def _time(text: str | None) -> datetime | None:
    """Return a time of SLURM, which is local; None for words such as `Unknown`."""
    try:
        return datetime.fromisoformat(text or "").astimezone()
    except ValueError:
        return None


def job_of(job: str) -> Job:
    """Ask SLURM for a job. Where it does not answer, all but the number is unknown."""
    return parse_job(job, slurm.ask(["scontrol", "show", "job", job]))


def hosts(job: Job) -> list[str]:
    """Return the names of a job's nodes, in SLURM's order."""
    return _expand(job.nodes) if job.nodes else []


def _expand(nodes: str) -> list[str]:
    return slurm.ask(["scontrol", "show", "hostnames", nodes]).split()


def version() -> str | None:
    """Return SLURM's version, or None if it does not tell it."""
    match = _VERSION.search(slurm.ask(["scontrol", "--version"]))
    return match[1] if match else None


def rotate_nodes(names: Sequence[str], count: int, repeat: int) -> list[str]:
    """Return the nodes of a run: the first ones, after the list is rotated by the repeat.

    Within a repeat those of fewer nodes are among those of more.

    Parameters
    ----------
    names : the nodes of the job; at least `count`.
    repeat : from 1; the first begins with the first node.
    """
    first = (repeat - 1) % len(names)
    return [names[(first + place) % len(names)] for place in range(count)]


def srun(job: str, nodes: int, tasks: int, names: Sequence[str] = ()) -> list[str]:
    """Return the `srun` of a job step over some nodes whose processes bind themselves."""
    return [
        "srun",
        f"--jobid={job}",
        f"--nodes={nodes}",
        f"--ntasks={tasks}",
        f"--ntasks-per-node={tasks // nodes}",
        "--distribution=block",
        "--cpu-bind=none",
        "--export=ALL",
        *([f"--nodelist={','.join(names)}"] if names else []),
    ]


def require_host() -> None:
    """Refuse to measure on a machine that is no node of the allocation that this shell holds.

    Raises
    ------
    InputError : this shell holds an allocation, and this machine is none of its nodes.
    """
    job, nodes = number(), os.environ.get("SLURM_JOB_NODELIST")
    # SLURM names the node to every process that it starts on one.
    if job is None or nodes is None or "SLURMD_NODENAME" in os.environ:
        return
    here = socket.gethostname()
    if any(same_host(here, name) for name in (nodes, *_expand(nodes))):
        return
    raise InputError(
        "SLURM_JOB_ID",
        job,
        f"is an allocation of {nodes}, and {here} is not part of it: runs of one node would be "
        "measured on this machine, and compared with those of the nodes",
        f"start the call on a node: srun --jobid={job} --nodes=1 --pty …; or in a job script; to "
        "measure this machine, leave the allocation",
    )


def same_host(first: str, second: str) -> bool:
    """Return whether two names are one machine's: the domain may be missing in either."""
    first, second = first.lower(), second.lower()
    return second in (first, first.partition(".")[0]) or first == second.partition(".")[0]
