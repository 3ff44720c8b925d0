"""Call SLURM's programs, check that its controller answers, and read how a job ended."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from escala.core import clock, exits, variables
from escala.core.children import completed
from escala.core.errors import InputError

#: SLURM's state of a job -> the run's status; any other is `failed`.
STATUSES = {"DEADLINE": "timeout", "OUT_OF_MEMORY": "out-of-memory", "TIMEOUT": "timeout"}
#: States in which a job has ended (man squeue).
_ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "TIMEOUT",
}  # fmt: skip
_MEANINGS = {"DEADLINE": "it had not begun after queue_minutes"}
_OVER_MEMORY = "exceeded memory limit"
# On some clusters the name of the node is included.
_WORDS = re.compile(r"^slurmstepd\S*: error: (.+)$", re.MULTILINE)
_SECONDS = 60
_CANCEL_SECONDS = 10

_PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
_ASKING = {*_PROGRAMS, "sacct", "sacctmgr", "sshare"} - {"srun"}
#: Seconds that one of these may take when the workflow is interrupted.
_PATIENCE_SECONDS = 5
#: A scheduler under load may take some seconds to answer.
_ANSWER_SECONDS = 15
_PROFILE = (
    f"without --profile, {variables.PROFILE} or --executor slurm the workflow runs on this machine"
)

#: Variables by which a user chooses what SLURM's programs print: columns, order, filters, times.
_CHOICES = re.compile(
    r"(SACCT|SCONTROL|SINFO|SPRIO|SQUEUE|SSHARE)_\w+|SLURM_(TIME_FORMAT|BITSTR_LEN)"
)


def environment(of: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which SLURM's programs print what this project reads.

    Parameters
    ----------
    of : the environment to begin with; default: that of this process.
    """
    begin = os.environ if of is None else of
    kept = {name: value for name, value in begin.items() if not _CHOICES.fullmatch(name)}
    return kept | {"SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}


def call(words: Sequence[str], seconds: float, **added: str) -> subprocess.CompletedProcess[str]:
    """Run a program of SLURM in `environment`, with some variables added.

    Raises
    ------
    OSError, subprocess.TimeoutExpired : it is not installed; it takes longer than `seconds`.
    """
    return completed(words, timeout=seconds, env=environment() | added)


def printed(words: Sequence[str], seconds: float = _SECONDS) -> str:
    """Return all that a program prints; see `call`."""
    done = call(words, seconds)
    return done.stdout + done.stderr


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


def ending(rule: str, wildcards: list[str], logs: Path) -> tuple[str, str]:
    """Return the status of a run whose job ended without a result, and the reason.

    Parameters
    ----------
    rule, wildcards : rule and wildcards of the job, by which Snakemake's executor for SLURM names
        it.
    logs : the folder of that executor's logs of jobs.
    """
    name = "_".join(wildcards)
    state = _state(f"rule_{rule}_wildcards_{name}") or ""
    written = sorted(
        (logs / f"rule_{rule}" / name).glob("*.log"), key=lambda log: log.stat().st_mtime
    )
    # The scheduler's message, in the newest log.
    said = (
        _WORDS.findall(written[-1].read_text(encoding="utf-8", errors="replace")) if written else []
    )
    if any(_OVER_MEMORY in line for line in said):
        state = "OUT_OF_MEMORY"
    words = ["its job ended without a result", state, _MEANINGS.get(state, ""), *said[:1]]
    return STATUSES.get(state, "failed"), ": ".join(filter(None, words))


def use_environment() -> None:
    """Make `environment` that of this process, in which Snakemake's executor calls the programs."""
    for name in os.environ.keys() - environment().keys():
        del os.environ[name]
    os.environ.pop("SLURM_TIME_FORMAT", None)


def cancel(name: str) -> bool:
    """Cancel the jobs of that name, and return whether the controller answered.

    Snakemake's executor cancels only jobs that it knows of: none while it checks their state, and
    no job that is being submitted.
    """
    with suppress(OSError, subprocess.TimeoutExpired):
        return call(["scancel", f"--name={name}"], _CANCEL_SECONDS).returncode == 0
    return False


def wait(number: str, seconds: float = 10) -> int:
    """Wait until a job has ended, and return its exit code as a shell has it.

    If this call is ended before, so is the job.

    Parameters
    ----------
    seconds : between two questions to the controller.
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
    """Return the exit code of a job; None if it goes on, or SLURM does not answer."""
    try:
        done = call(["scontrol", "show", "job", number], _SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if "Invalid job id" in done.stderr:
        return exits.FAILED
    state, code = (
        re.search(pattern, done.stdout, re.MULTILINE)
        for pattern in (r"^\s+JobState=(\w+)", r"\sExitCode=(\d+):(\d+)$")
    )
    if not state or not code or state[1] not in _ENDED:
        return None
    ended, signal = map(int, code.groups())
    if signal:
        return exits.SIGNALLED + signal
    return ended or (exits.DONE if state[1] == "COMPLETED" else exits.FAILED)


def end_waiting() -> None:
    """End programs of SLURM that this process started and that wait too long for an answer."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            if child.name() in _ASKING and clock.age(child.pid) > _PATIENCE_SECONDS:
                child.kill()


def _state(comment: str) -> str | None:
    """Return SLURM's state of the newest job with that comment, or None if SLURM does not tell it.

    The run is recorded in any case: what cannot be asked is left out of the reason.
    """
    ask = ["squeue", "--noheader", "--states=all", "--format=%i|%T|%k"]
    try:
        done = call(ask, _SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    jobs = [line.strip().split("|", 2) for line in done.stdout.splitlines() if "|" in line]
    states = {int(number): state for number, state, of in jobs if of == comment}
    return states[max(states)] if states else None
