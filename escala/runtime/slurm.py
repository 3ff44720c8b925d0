"""Call SLURM's programs, check that its controller answers, and read how a job ended."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

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
