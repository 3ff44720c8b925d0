"""Ask SLURM for the user's earlier jobs, and for its estimate of a job's start."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from collections.abc import Sequence

from escala.core.errors import InputError
from escala.runtime import slurm

#: Names of the jobs that this project submits begin so.
JOB_NAME = "escala"

_SECONDS = 60
_REMEDY = (
    "save the output of the command on the cluster, and name the file: --jobs FILE; "
    "or choose another goal"
)


def jobs(command: str, days: int) -> str:
    """Return what `sacct` prints of the user's own jobs, with times in UTC.

    Parameters
    ----------
    command : `sacct` with its options.
    days : how far back.

    Raises
    ------
    InputError : there is no accounting.
    """
    words = [*command.split(), f"--user={getpass.getuser()}", f"--starttime=now-{days}days"]
    return _called(words)


def test_only(options: Sequence[str]) -> str | None:
    """Return what `sbatch --test-only` prints for a job with these options, with times in UTC.

    The job is not submitted. None if there is no `sbatch`, or it refuses.
    """
    if shutil.which("sbatch") is None:
        return None
    try:
        return _called(["sbatch", "--test-only", *options, "--wrap=true"], stderr=True)
    except InputError:
        return None


def _called(words: Sequence[str], *, stderr: bool = False) -> str:
    """Return the output of a command of SLURM."""
    try:
        done = slurm.call(words, _SECONDS, TZ="UTC")
    except FileNotFoundError as error:
        raise InputError(words[0], " ".join(words), "is not installed here", _REMEDY) from error
    except subprocess.TimeoutExpired as error:
        reason = f"did not answer within {_SECONDS} s"
        raise InputError(words[0], " ".join(words), reason, _REMEDY) from error
    if done.returncode:
        printed = (done.stderr.strip() or f"ended with {done.returncode}").splitlines()[-1]
        raise InputError(words[0], " ".join(words), printed, _REMEDY)
    return done.stderr if stderr else done.stdout
