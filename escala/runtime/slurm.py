"""SLURM: its programs and its answers, the job of a session, and how a job ended.

A session inside a job of several nodes starts every run as a job step, also a run of one node. The
nodes of the runs of a repeat are nested, so that the runs of a pair share nodes. Each repeat begins
with another node. So each node takes runs of one node, and what differs between nodes is a part of
the interval.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from escala.core import console, variables
from escala.core.children import capture
from escala.core.errors import InputError

#: The status of a run by the state of its job; None if the run has not failed. For any other state
#: the status is `failed`.
_STATUSES = {
    "CANCELLED": None, "NODE_FAIL": None, "OUT_OF_MEMORY": "out-of-memory", "PREEMPTED": None,
    "TIMEOUT": "timeout",
}  # fmt: skip
#: States in which a job has ended (man squeue).
_ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "TIMEOUT",
}  # fmt: skip
_OVER_MEMORY = "exceeded memory limit"
# On some clusters the line includes the name of the node.
_ERRORS = re.compile(r"^slurmstepd\S*: error: (.+)$", re.MULTILINE)
_CALL_SECONDS = 60
_CANCEL_SECONDS = 10

_PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
#: A scheduler under load may take some seconds to answer.
_ANSWER_SECONDS = 15
_PROFILE = (
    f"without --profile, {variables.PROFILE} or --executor slurm the workflow runs on this machine"
)

#: Variables by which a user changes the output of SLURM's programs: columns, order, filters, times.
_OUTPUT_VARIABLES = re.compile(
    r"(SACCT|SCONTROL|SINFO|SPRIO|SQUEUE|SSHARE)_\w+|SLURM_(TIME_FORMAT|BITSTR_LEN)"
)


def environment() -> dict[str, str]:
    """Return the environment of this process, changed so that Escala can read SLURM's output."""
    names = [name for name in os.environ if not _OUTPUT_VARIABLES.fullmatch(name)]
    return {name: os.environ[name] for name in names} | {
        "SLURM_TIME_FORMAT": "standard",
        "LC_ALL": "C",
    }


def call(words: Sequence[str], seconds: float, **added: str) -> subprocess.CompletedProcess[str]:
    """Run a program of SLURM in `environment`, with some variables added.

    Raises
    ------
    OSError : the program is not installed.
    subprocess.TimeoutExpired : the program takes longer than `seconds`.
    """
    return capture(words, timeout=seconds, env=environment() | added)


def output_of(words: Sequence[str], seconds: float = _CALL_SECONDS) -> str:
    """Return the output of a program; see `call`."""
    done = call(words, seconds)
    return done.stdout + done.stderr


def ask(words: Sequence[str]) -> str:
    """Return the output of a program; empty if it is not installed, fails or does not answer."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = call(words, _CALL_SECONDS)
        return "" if done.returncode else done.stdout
    return ""


def require_controller() -> None:
    """Refuse to continue if no job can be submitted.

    Raises
    ------
    InputError : SLURM's programs are not installed, or its controller does not answer in time.
    """
    lacking = [program for program in _PROGRAMS if shutil.which(program) is None]
    if lacking:
        raise InputError(
            "executor: slurm",
            ", ".join(lacking),
            "not found on the PATH",
            f"call it on a login node, after `module load slurm` if it needs that; {_PROFILE}",
        )
    try:
        done = call(["sinfo", "--noheader", "--format=%R"], _ANSWER_SECONDS)
        if done.returncode == 0:
            return
        why = (done.stderr.strip() or f"sinfo ended with {done.returncode}").splitlines()[-1]
    except subprocess.TimeoutExpired:
        why = f"no answer within {_ANSWER_SECONDS} s"
    raise InputError(
        "executor: slurm",
        "sinfo",
        f"SLURM's controller does not answer: {why}",
        f"check whether `sinfo` works here, or ask the cluster's support; {_PROFILE}",
    )


def job_ending(
    job: str, log: Path | None, was_interrupted: bool = False
) -> tuple[str | None, str] | None:
    """Return how a job without a result of its run ended; None while the job goes on.

    The reason includes only details that SLURM tells.

    Parameters
    ----------
    log : the log of the job, with errors of SLURM; None if unknown.
    was_interrupted : whether a signal ended the run before its job ended. Such a run has failed
        only if it used too much memory.

    Returns
    -------
    The status of the run, None if it has not failed, and the reason.
    """
    job_state = state(job)
    if job_state and job_state not in _ENDED:
        return None
    errors = []
    if log and log.is_file():
        errors = _ERRORS.findall(log.read_text(encoding="utf-8", errors="replace"))
    if any(_OVER_MEMORY in line for line in errors):
        job_state = "OUT_OF_MEMORY"
    has_failed = not was_interrupted or job_state == "OUT_OF_MEMORY"
    status = _STATUSES.get(job_state, "failed") if has_failed else None
    reasons = ["its job ended without a result", job_state, *errors[:1]]
    return status, ": ".join(filter(None, reasons))


def overdue_jobs(name: str) -> list[str]:
    """Return the numbers of the jobs of a name that did not begin within `queue_minutes`."""
    states = _states(f"--name={name}")
    return [number for number, state in states.items() if state == "DEADLINE"]


def use_environment() -> None:
    """Prepare the environment of this process, from which Snakemake's executor calls SLURM.

    If the executor states no memory for a job, the job gets all memory of its nodes.
    """
    for name in os.environ.keys() - environment().keys():
        del os.environ[name]
    os.environ.pop("SLURM_TIME_FORMAT", None)
    os.environ.setdefault("SBATCH_MEM_PER_NODE", "0")


def cancel(name: str) -> bool:
    """Cancel the jobs of a name, and return whether the controller answered.

    Snakemake's executor cancels only jobs that it knows. It knows no jobs while it checks their
    state, and it does not know a job that is being submitted.
    """
    with suppress(OSError, subprocess.TimeoutExpired):
        return call(["scancel", f"--name={name}"], _CANCEL_SECONDS).returncode == 0
    return False


def wait(number: str, seconds: float = 10) -> int:
    """Wait until a job has ended, and return its exit code as a shell has it.

    An exception during the wait, such as Ctrl-C, cancels the job.

    Parameters
    ----------
    seconds : the time between two questions to the controller.
    """
    try:
        while (code := _exit_code(number)) is None:
            time.sleep(seconds)
        return code
    except BaseException:
        with suppress(OSError, subprocess.TimeoutExpired):
            call(["scancel", number], _CANCEL_SECONDS)
        raise


def _exit_code(number: str) -> int | None:
    """Return the exit code of a job; None while the job goes on, or if SLURM does not answer."""
    try:
        done = call(["scontrol", "show", "job", number], _CALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if "Invalid job id" in done.stderr:
        return console.FAILED
    state, code = (
        re.search(pattern, done.stdout, re.MULTILINE)
        for pattern in (r"^\s+JobState=(\w+)", r"\sExitCode=(\d+):(\d+)$")
    )
    if not state or not code or state[1] not in _ENDED:
        return None
    ended, signal = map(int, code.groups())
    if signal:
        return console.SIGNALLED + signal
    return ended or (console.DONE if state[1] == "COMPLETED" else console.FAILED)


def state(job: str) -> str | None:
    """Return SLURM's state of a job; None if SLURM does not tell the state."""
    if state := _states(f"--jobs={job}").get(job):
        return state
    # After some minutes only the accounting knows the state, such as `CANCELLED by 1000`.
    options = ["--noheader", "--allocations", "--parsable2", "--format=State", f"--jobs={job}"]
    return next(iter(ask(["sacct", *options]).split()), None)


def _states(selection: str) -> dict[str, str]:
    """Return the states of the jobs that an option of `squeue` selects, by their numbers."""
    text = ask(["squeue", "--noheader", "--states=all", "--format=%i|%T", selection])
    lines = (line.strip().partition("|") for line in text.splitlines())
    return {number: state for number, _, state in lines if state}


#: Values in the output of `scontrol show job`, by the key at the beginning of a line. A name or a
#: comment may hold any text, but never begins a line.
_LINES = {
    "submitted": r"^\s+SubmitTime=(\S+)",
    "started": r"^\s+StartTime=(\S+)",
    "ends": r"^\s+StartTime=\S+ EndTime=(\S+)",
    "nodes": r"^\s+NodeList=(\S+)",
    "shared": r"^\s+OverSubscribe=(\S+)",
    "output": r"^\s+StdOut=(.+)$",
}
#: Waiting tasks of a job array also have the number of the array, and come before running tasks.
_WAITING = re.compile(r"^\s+JobState=PENDING", re.MULTILINE)
_VERSION = re.compile(r"^slurm\S*\s+(\S+)")


@dataclass(frozen=True)
class Job:
    """A job that SLURM has given nodes.

    Attributes
    ----------
    number : the number that SLURM gave it.
    nodes : the names of its nodes as SLURM writes them, such as `n[1-4]`; empty if unknown.
    exclusive : whether its nodes are closed to other jobs; None if unknown.
    submitted, started, ends : in the local time of this machine; None if unknown, or without end.
    output : the file of its output; None if unknown.
    scheduler : the name of another scheduler that gave the nodes (`escala.runtime.allocation`).
    """

    number: str
    nodes: str
    exclusive: bool | None
    submitted: datetime | None
    started: datetime | None
    ends: datetime | None
    output: str | None = None
    scheduler: str = "slurm"


def job_number() -> str | None:
    """Return SLURM's number of the job or the allocation of this process, or None."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SLURM_JOBID") or None


def parse_job(job: str, text: str) -> Job:
    """Read the output of `scontrol show job`. Its JSON output is not in all versions.

    Parameters
    ----------
    text : the output. It may be an error message, or lack lines; missing values are unknown.
    """
    records = re.split(r"\n[ \t]*\n", text)
    records = [record for record in records if re.match(rf"\s*JobId={job}\b", record)] or records
    record = next((record for record in records if not _WAITING.search(record)), records[0])
    matches = {name: re.search(line, record, re.MULTILINE) for name, line in _LINES.items()}
    values = {name: match[1] if match else None for name, match in matches.items()}
    return Job(
        number=job,
        nodes="" if values["nodes"] in (None, "(null)") else values["nodes"],
        # SLURM prints NO for a job that shares its nodes with no other job.
        exclusive=None if values["shared"] is None else values["shared"] == "NO",
        submitted=_parse_time(values["submitted"]),
        started=_parse_time(values["started"]),
        ends=_parse_time(values["ends"]),
        output=values["output"],
    )


def _parse_time(text: str | None) -> datetime | None:
    """Return a local time that SLURM prints; None for words such as `Unknown`."""
    try:
        return datetime.fromisoformat(text or "").astimezone()
    except ValueError:
        return None


def ask_job(job: str) -> Job:
    """Return a job as SLURM describes it. Without an answer, all but the number is unknown."""
    return parse_job(job, ask(["scontrol", "show", "job", job]))


def hosts(job: Job) -> list[str]:
    """Return the names of a job's nodes, in SLURM's order."""
    return _list_hosts(job.nodes) if job.nodes else []


def _list_hosts(nodes: str) -> list[str]:
    return ask(["scontrol", "show", "hostnames", nodes]).split()


def version() -> str | None:
    """Return the version of SLURM, or None if SLURM does not tell it."""
    match = _VERSION.search(ask(["scontrol", "--version"]))
    return match[1] if match else None


def rotate_nodes(names: Sequence[str], count: int, repeat: int) -> list[str]:
    """Return the nodes of a run: the first ones, after the list is rotated by the repeat.

    Within a repeat, a run of more nodes uses all nodes of a run of fewer nodes.

    Parameters
    ----------
    names : the nodes of the job; at least `count`.
    repeat : from 1. The first repeat begins with the first node.
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


class NodeSize(NamedTuple):
    """The physical cores, the hardware threads and the GPUs of a node."""

    cores: int
    threads: int
    gpus: int


#: A node in the output of `sinfo`: its partition, with `*` if that is the default one; its sockets,
#: cores of a socket and threads of a core; and its devices, such as `gpu:a100:4(S:0-1)`.
_NODE = re.compile(r"(\S+?)(\*?)\|(\d+):(\d+):(\d+)\|(.*)")
_GPUS = re.compile(r"\bgpu(?::[^:,()]+)?:(\d+)")


def smallest_node() -> NodeSize | None:
    """Return the size of the smallest node of the partition of jobs; None if SLURM does not tell.

    The partition is that of the job of this process, or the one that sbatch takes from its
    variable, or the default one.
    """
    names = (os.environ.get(name) for name in ("SLURM_JOB_PARTITION", "SBATCH_PARTITION"))
    named = next(filter(None, names), None)
    sizes = []
    for line in ask(["sinfo", "--noheader", "--exact", "--format=%P|%z|%G"]).splitlines():
        if match := _NODE.fullmatch(line.strip()):
            partition, is_default, sockets, cores, threads, devices = match.groups()
            if partition == named if named else is_default:
                physical, gpus = int(sockets) * int(cores), map(int, _GPUS.findall(devices))
                sizes.append(NodeSize(physical, physical * int(threads), sum(gpus)))
    return min(sizes, default=None)


def require_host() -> None:
    """Refuse to measure on a machine outside the allocation of this shell.

    Raises
    ------
    InputError : this shell holds an allocation, and this machine is no node of it.
    """
    job, nodes = job_number(), os.environ.get("SLURM_JOB_NODELIST")
    # SLURM names the node to every process that it starts on one.
    if job is None or nodes is None or "SLURMD_NODENAME" in os.environ:
        return
    if any(is_here(name) for name in (nodes, *_list_hosts(nodes))):
        return
    here = socket.gethostname()
    raise InputError(
        "SLURM_JOB_ID",
        job,
        f"is an allocation of {nodes}, and {here} is not part of it: runs of one node would be "
        "measured on this machine, and compared with those of the nodes",
        f"start the call on a node: srun --jobid={job} --nodes=1 --pty …; or in a job script; to "
        "measure this machine, leave the allocation",
    )


def is_here(name: str) -> bool:
    """Return whether a name is one of this machine."""
    return same_host(socket.gethostname(), name)


def same_host(first: str, second: str) -> bool:
    """Return whether two names are names of one machine. Either may lack the domain."""
    first, second = first.lower(), second.lower()
    return second in (first, first.partition(".")[0]) or first == second.partition(".")[0]
