"""The hosts that the job of this process holds, and how a program is started on them.

| scheduler | told by | programs are started by |
|---|---|---|
| `hosts`: a list of the user | `ESCALA_HOSTS`: names, or a file of them | ssh |
| `slurm` | `SLURM_JOB_ID`, `scontrol` | `srun` |
| `pbs` | `PBS_JOBID`, the file `PBS_NODEFILE` | ssh |
| `lsf` | `LSB_JOBID`, `LSB_MCPU_HOSTS` or the file `LSB_DJOB_HOSTFILE` | ssh |
| `flux` | `FLUX_URI`, `flux resource list` | ssh |

The first that is told counts. `ESCALA_SSH` holds the words of ssh with its options, or of another
program that takes a host and a command line and passes its input on.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from escala.core.errors import InputError
from escala.core.hardware import available_cores
from escala.runtime import slurm

#: The variable with the hosts that a user names, and the one with the time of a job, which
#: `escala submit` writes into scripts of schedulers other than SLURM: `BEGIN:SECONDS`, where BEGIN
#: are seconds of the epoch.
HOSTS, TIME = "ESCALA_HOSTS", "ESCALA_JOB_TIME"
#: The variables of schedulers, besides SLURM, with the number of the job of a process.
_NUMBERS = {"pbs": "PBS_JOBID", "lsf": "LSB_JOBID", "flux": "FLUX_URI"}
#: A name, perhaps with ranges of numbers; or the count of the last name: `4`, `slots=4`.
_WORD = re.compile(r"(?:[^\s,\[\]]|\[[^\]]*\])+")
_COUNT = re.compile(r"(?:slots=)?(\d+)")
_RANGES = re.compile(r"([^\[]*)\[([^\]]+)\](.*)")


def scheduler() -> str | None:
    """Return the scheduler of the job of this process, `hosts` for a list; None without a job."""
    if os.environ.get(HOSTS):
        return "hosts"
    if slurm.job_number():
        return "slurm"
    return next((name for name, number in _NUMBERS.items() if os.environ.get(number)), None)


def by_slurm() -> bool:
    """Return whether `srun` starts the programs of a job: no other scheduler gave the hosts."""
    return scheduler() in (None, "slurm")


def job_number() -> str | None:
    """Return the number of the job of this process as a name of a file; None outside of a job.

    A list of hosts has a name of its content.
    """
    match scheduler():
        case None:
            return None
        case "slurm":
            return slurm.job_number()
        case "hosts":
            content = json.dumps(cores_by_host()).encode()
            return f"hosts-{hashlib.sha256(content).hexdigest()[:8]}"
        case "flux":
            number = _ask_flux(os.environ["FLUX_URI"], "getattr", "jobid").strip() or "flux"
        case other:
            number = os.environ[_NUMBERS[other]]
    return re.sub(r"[^\w-]+", "-", number)


def ask_job() -> slurm.Job | None:
    """Return the job of this process, or None. What a scheduler does not tell is unknown."""
    number, name = job_number(), scheduler()
    if number is None or name == "slurm":
        return slurm.ask_job(number) if number else None
    times = re.fullmatch(r"(\d+):(\d+)", os.environ.get(TIME, ""))
    started = datetime.fromtimestamp(int(times[1]), UTC) if times else None
    return slurm.Job(
        number=number,
        nodes=",".join(cores_by_host()),
        exclusive=None,
        submitted=None,
        started=started,
        ends=started and started + timedelta(seconds=int(times[2])),
        scheduler=name,
    )


def hosts(job: slurm.Job) -> list[str]:
    """Return the names of a job's hosts, in the order of its scheduler."""
    return slurm.hosts(job) if job.scheduler == "slurm" else list(cores_by_host())


def cores_by_host() -> dict[str, int | None]:
    """Return the hosts of a job of this process with the cores that it has on each.

    Returns
    -------
    None for the cores: all that a process there may use, as always with SLURM, which binds
    processes. Empty with SLURM and outside of a job.

    Raises
    ------
    InputError : the list of hosts cannot be read.
    """
    get = os.environ.get
    match scheduler():
        case "hosts":
            return _read(HOSTS, get(HOSTS))
        case "pbs":
            slots = _read("PBS_NODEFILE", get("PBS_NODEFILE", ""))
            # A host stands there once for each process of MPI, be it one with all NCPUS cores.
            return {name: max(n or 1, int(get("NCPUS") or 1)) for name, n in slots.items()}
        case "lsf":
            variable = "LSB_MCPU_HOSTS" if get("LSB_MCPU_HOSTS") else "LSB_DJOB_HOSTFILE"
            return {name: n or 1 for name, n in _read(variable, get(variable, "")).items()}
        case "flux":
            options = ("--states=up", "--no-header", "--format={nodelist} {ncores} {nnodes}")
            cores = {}
            listed = _ask_flux(get("FLUX_URI"), "resource", "list", *options)
            for names, count, nodes in re.findall(r"^(\S+) (\d+) (\d+)\s*$", listed, re.M):
                cores |= dict.fromkeys(parse_hosts(names), int(count) // int(nodes))
            if not cores:
                reason = "flux resource list names no host there"
                raise InputError("FLUX_URI", get("FLUX_URI"), reason, "unset it, or start Flux")
            return cores
    return {}


def bind_to_job() -> None:
    """Bind this process and its children to as many cores as its job has on this machine.

    A scheduler may give a job a part of a machine, and let its processes use all of it.
    """
    here = (count for host, count in cores_by_host().items() if slurm.is_here(host))
    if count := next(here, None):
        os.sched_setaffinity(0, available_cores()[:count])


@cache
def _ask_flux(uri: str | None, *words: str) -> str:
    return slurm.ask(["flux", *words])


def _read(variable: str, text: str) -> dict[str, int | None]:
    """Read a list of hosts from the value of a variable, or from the file that it names."""
    try:
        with suppress(OSError):  # A list may be longer than a name of a file may be.
            if Path(text).is_file():
                text = Path(text).read_text(encoding="utf-8")
        slots = parse_hosts(text)
        if slots and not any("/" in name for name in slots):
            return slots
        reason = "is no file" if slots else "names no host"
    except ValueError as error:
        reason = str(error)
    raise InputError(variable, text, reason, "name hosts, such as n1,n2 or n[1-4]:16; or a file")


def parse_hosts(text: str) -> dict[str, int | None]:
    """Read a list of hosts, in any of the forms of schedulers and of MPI, in its order.

    Parameters
    ----------
    text : `n1 n1 n2 n2` and `n1 2 n2 2` are one list. So are `n[1-2]:2`, and lines such as
        `n1 slots=2  # old`.

    Returns
    -------
    The slots of each host; None for all if no host has a number and none stands there twice.

    Raises
    ------
    ValueError : a number without a host, or a range that is none.
    """
    totals: dict[str, int] = {}
    last, are_counted = [], False
    text = re.sub(r"#.*|\bmax[_-]slots=\S+", "", text)
    if text.count("[") != text.count("]"):
        raise ValueError("a bracket stands alone")
    for word in _WORD.findall(text):
        name, _, slots = word.partition(":")
        count = _COUNT.fullmatch(slots or name)
        if (slots and not count) or ("=" in name and not count) or (count and not int(count[1])):
            raise ValueError(f"{word!r} is no host with a number of cores")
        if slots or not count:
            last = _expand(name)
            are_counted |= any(host in totals for host in last)
            for host in last:
                totals[host] = totals.get(host, 0) + 1
        if count:
            if not last:
                raise ValueError(f"{word!r} is a number without a host")
            are_counted = True
            for host in last:
                totals[host] += int(count[1]) - 1
            last = []
    return dict(totals) if are_counted else dict.fromkeys(totals)


def _expand(name: str) -> list[str]:
    """Return the names that `n[01-03,7]-ib` stands for."""
    match = _RANGES.fullmatch(name)
    if match is None:
        return [name]
    prefix, ranges, rest = match.groups()
    names = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not (
            first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first)
        ):
            raise ValueError(f"{name!r} has no range such as [1-4,7]")
        for number in range(int(first), int(last or first) + 1):
            names += [f"{prefix}{number:0{len(first)}}{tail}" for tail in _expand(rest)]
    return names


def step(
    job: str,
    nodes: int,
    tasks: int,
    names: Sequence[str],
    mpi: str = "none",
    options: Sequence[str] = (),
) -> list[str]:
    """Return the words that start a program over some hosts of a job, that of this process.

    The processes bind themselves. What is started so may run at the same time as other steps.

    Parameters
    ----------
    tasks : the count of processes over all hosts.
    names : the hosts. If empty, the first `nodes` hosts of the job.
    mpi, options : the kind of MPI and further options, for `srun`.
    """
    if by_slurm():
        return [*slurm.srun(job, nodes, tasks, names), "--overlap", f"--mpi={mpi}", *options]
    hosts = ",".join(names or list(cores_by_host())[:nodes])
    return [sys.executable, "-m", "escala.runtime.spawn", "--hosts", hosts, str(tasks)]
