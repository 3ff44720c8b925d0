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

#: Values in the output of `scontrol show job`, by the key at the begin of their line. A name or a
#: comment, which may hold any text, stands after another key.
_LINES = {
    "submitted": r"^\s+SubmitTime=(\S+)",
    "started": r"^\s+StartTime=(\S+)",
    "ends": r"^\s+StartTime=\S+ EndTime=(\S+)",
    "nodes": r"^\s+NodeList=(\S+)",
    "shared": r"^\s+OverSubscribe=(\S+)",
    "output": r"^\s+StdOut=(.+)$",
}
#: Waiting tasks of a job array have its number too, and stand before those that run.
_WAITING = re.compile(r"^\s+JobState=PENDING", re.MULTILINE)
_VERSION = re.compile(r"^slurm\S*\s+(\S+)")


@dataclass(frozen=True)
class Job:
    """A job that SLURM has given nodes.

    Attributes
    ----------
    number : the number that SLURM gave it.
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


def job_number() -> str | None:
    """Return SLURM's number of the job or the allocation of this process, or None."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SLURM_JOBID") or None


def parse_job(job: str, text: str) -> Job:
    """Read what `scontrol show job` prints of a job; its JSON form is not in all versions.

    Parameters
    ----------
    text : may be an error message, or lack lines; what it does not tell is unknown.
    """
    records = re.split(r"\n[ \t]*\n", text)
    records = [record for record in records if re.match(rf"\s*JobId={job}\b", record)] or records
    record = next((record for record in records if not _WAITING.search(record)), records[0])
    matches = {name: re.search(line, record, re.MULTILINE) for name, line in _LINES.items()}
    values = {name: match[1] if match else None for name, match in matches.items()}
    return Job(
        number=job,
        nodes="" if values["nodes"] in (None, "(null)") else values["nodes"],
        # SLURM prints NO for a job that shares its nodes with no other one.
        exclusive=None if values["shared"] is None else values["shared"] == "NO",
        submitted=_parse_time(values["submitted"]),
        started=_parse_time(values["started"]),
        ends=_parse_time(values["ends"]),
        output=values["output"],
    )


def _parse_time(text: str | None) -> datetime | None:
    """Return a time of SLURM, which is local; None for words such as `Unknown`."""
    try:
        return datetime.fromisoformat(text or "").astimezone()
    except ValueError:
        return None


def ask_job(job: str) -> Job:
    """Return a job as SLURM describes it. Without an answer, all but the number is unknown."""
    return parse_job(job, slurm.ask(["scontrol", "show", "job", job]))


def hosts(job: Job) -> list[str]:
    """Return the names of a job's nodes, in SLURM's order."""
    return _list_hosts(job.nodes) if job.nodes else []


def _list_hosts(nodes: str) -> list[str]:
    return slurm.ask(["scontrol", "show", "hostnames", nodes]).split()


def version() -> str | None:
    """Return SLURM's version, or None if it does not tell it."""
    match = _VERSION.search(slurm.ask(["scontrol", "--version"]))
    return match[1] if match else None


def rotate_nodes(names: Sequence[str], count: int, repeat: int) -> list[str]:
    """Return the nodes of a run: the first ones, after the list is rotated by the repeat.

    Within a repeat, the nodes of a run of fewer nodes are among those of a run of more.

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
    job, nodes = job_number(), os.environ.get("SLURM_JOB_NODELIST")
    # SLURM names the node to every process that it starts on one.
    if job is None or nodes is None or "SLURMD_NODENAME" in os.environ:
        return
    here = socket.gethostname()
    if any(same_host(here, name) for name in (nodes, *_list_hosts(nodes))):
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
