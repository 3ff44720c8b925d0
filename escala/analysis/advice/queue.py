"""Ask SLURM about the queue, or read what it printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from escala.analysis import queue_waits
from escala.analysis.queue_waits import Job
from escala.core.errors import InputError
from escala.core.readable import counted
from escala.core.text import read_text
from escala.runtime import accounting

_REMEDY = f"save the output of `{queue_waits.COMMAND}`"


@dataclass(frozen=True)
class Queue:
    """Evidence on waits in the queue of a cluster.

    Attributes
    ----------
    jobs : of the user.
    now : in the time zone of the jobs.
    own : number of jobs of this project that are left out: a study submits many at once, which wait
        for each other.
    named : whether the names of the jobs are known, by which those of this project are found.
    test_only : returns what `sbatch --test-only` prints for a job with some options, or None.
    """

    jobs: Sequence[Job]
    now: datetime
    own: int = 0
    named: bool = True
    test_only: Callable[[Sequence[str]], str | None] = lambda options: None


def _queue(jobs: Sequence[Job], now: datetime, **more) -> Queue:
    kept = queue_waits.others(jobs, accounting.JOB_NAME)
    named = all(job.name is not None for job in jobs)
    return Queue(kept, now, len(jobs) - len(kept), named, **more)


def ask(days: int) -> Queue:
    """Return the user's jobs of so many days.

    Raises
    ------
    InputError : there is no accounting, or it prints no jobs.
    """
    printed = accounting.jobs(queue_waits.COMMAND, days)
    now = datetime.now(UTC).replace(tzinfo=None)
    return _queue(queue_waits.parse(printed), now, test_only=accounting.test_only)


def read(file: Path) -> Queue:
    """Return the jobs of a saved output of `queue_waits.COMMAND`; its latest moment is now.

    Raises
    ------
    InputError : the file has no jobs, or is not that output.
    """
    jobs = queue_waits.parse(read_text(file), file)
    now = queue_waits.latest(jobs)
    if now is None:
        raise InputError(file, counted(len(jobs), "job"), "has no jobs with a moment", _REMEDY)
    return _queue(jobs, now)
