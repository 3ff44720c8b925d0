"""Estimate how long a job will wait in the queue, from the user's own jobs.

The wait of a job is the time from the moment at which it may start to its start. SLURM calls this
moment `Eligible`: dependencies and `--begin` are over then, and only the queue is left.

The upper bound is a non-parametric tolerance bound: whatever the distribution of the waits is, the
r-th shortest of n waits is at least as long as the share p of all waits with probability
P(X < r), where X is binomial with n and p (S. S. Wilks, Determination of sample sizes for setting
tolerance limits, Annals of Mathematical Statistics 12 (1941), 91-96). The jobs are taken to be
independent, and the queue to stay as it was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from scipy import stats

from escala.core.errors import InputError

#: Columns of `sacct`, in this order.
FIELDS = (
    "Partition",
    "NNodes",
    "ReqCPUS",
    "State",
    "Submit",
    "Eligible",
    "Start",
    "NodeList",
    # Last, since a name may hold the sign between columns.
    "JobName",
)
#: The command whose output `parse` reads.
COMMAND = f"sacct -X -P --noheader --format={','.join(FIELDS)}"
#: Share of the waits that the upper bound covers, and the confidence in this.
COVERAGE, CONFIDENCE = 0.95, 0.95

_PENDING = "PENDING"
_NO_NODES = ("", "None assigned")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_TEST_ONLY = re.compile(r"\bto start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


@dataclass(frozen=True)
class Job:
    """A job of the user.

    Attributes
    ----------
    partitions : more than one if it waits for any of them.
    cores : that it requested; whole nodes may be given to it.
    eligible : when it could have started; None while it is held or depends on others.
    start : None if it never started, or has not yet.
    name : None if the output does not have it.
    """

    partitions: tuple[str, ...]
    nodes: int
    cores: int
    pending: bool
    submitted: datetime | None
    eligible: datetime | None
    start: datetime | None
    name: str | None = None


@dataclass(frozen=True)
class Waits:
    """The waits of jobs of one size.

    Attributes
    ----------
    seconds : in increasing order, of shape (jobs,). A job that still waits counts with its wait so
        far.
    pending : how many of the jobs still wait.
    bound : seconds that at least `COVERAGE` of such jobs wait at most, with confidence
        `CONFIDENCE`; None if there are too few jobs, or too many that still wait.
    """

    seconds: np.ndarray
    pending: int
    bound: float | None

    @property
    def jobs(self) -> int:
        return len(self.seconds)


def parse(text: str, where: object = "sacct") -> list[Job]:
    """Return the jobs of an output of `COMMAND`, which may lack the names of the jobs.

    Raises
    ------
    InputError : a line does not have the columns of `FIELDS`, or a moment has another form.
    """
    lines = enumerate(text.splitlines(), start=1)
    return [_job(line, f"{where}: line {number}") for number, line in lines if line.strip()]


def _job(line: str, where: str) -> Job:
    values = line.strip().split("|", len(FIELDS) - 1)
    try:
        if len(values) == len(FIELDS) - 1 or not values[-1]:
            values = [*values[: len(FIELDS) - 1], None]
        of = dict(zip(FIELDS, values, strict=True))
        start = None if of["NodeList"] in _NO_NODES else _moment(of["Start"])
        return Job(
            tuple(of["Partition"].split(",")),
            int(of["NNodes"]),
            int(of["ReqCPUS"]),
            of["State"] == _PENDING,
            _moment(of["Submit"]),
            _moment(of["Eligible"]),
            start,
            of["JobName"],
        )
    except ValueError as error:
        reason = "is not a job as sacct prints it"
        raise InputError(
            where,
            line,
            f"{reason}: {error}" if isinstance(error, _OtherMoment) else reason,
            f"save the output of `SLURM_TIME_FORMAT=standard {COMMAND}`",
        ) from error


class _OtherMoment(ValueError):
    """A moment that SLURM prints only if `SLURM_TIME_FORMAT` asks for it."""


def _moment(text: str) -> datetime | None:
    """Return a moment in the time zone of the file; None if SLURM knows none."""
    if text in ("Unknown", "None", "N/A", ""):
        return None
    if not _MOMENT.fullmatch(text):
        raise _OtherMoment(f"{text!r} is no moment as 2026-01-31T12:00:00, see SLURM_TIME_FORMAT")
    return datetime.fromisoformat(text)


def partitions(jobs: Sequence[Job]) -> list[str]:
    """Return the names of the partitions of some jobs."""
    return sorted({name for job in jobs for name in job.partitions if name})


def latest(jobs: Sequence[Job]) -> datetime | None:
    """Return the latest moment that has passed, as some jobs tell it; None without any.

    A job that waits may be eligible later: with `--begin`, that moment is in the future.
    """
    moments = [
        moment
        for job in jobs
        for moment in (job.submitted, job.start, job.eligible if job.start else None)
        if moment
    ]
    return max(moments, default=None)


def others(jobs: Sequence[Job], prefix: str) -> list[Job]:
    """Return the jobs whose name does not begin with a prefix; those without a known name too."""
    return [job for job in jobs if not (job.name or "").startswith(prefix)]


def waits(jobs: Sequence[Job], partition: str, nodes: int, cores: int, now: datetime) -> Waits:
    """Return the waits of the jobs of a partition that are as large as a planned one.

    Two jobs are as large if their nodes and their cores round up to the same powers of two. A job
    that was cancelled before it started has no wait. One that still waits counts as longer than
    all others for the bound, unless it is not eligible yet.

    Parameters
    ----------
    now : in the time zone of the jobs.
    """
    size = _rounded(nodes), _rounded(cores)
    alike = [
        job
        for job in jobs
        if partition in job.partitions
        and (_rounded(job.nodes), _rounded(job.cores)) == size
        and job.eligible is not None
        and (job.start is not None or job.eligible <= now)
    ]
    started = [_seconds(job, job.start) for job in alike if job.start is not None]
    pending = [_seconds(job, now) for job in alike if job.pending]
    found = np.sort(np.array([*started, *pending], float))
    rank = bound_rank(len(found))
    known = rank is not None and rank <= len(started)
    return Waits(found, len(pending), float(np.sort(started)[rank - 1]) if known else None)


def _seconds(job: Job, end: datetime) -> float:
    return max((end - job.eligible).total_seconds(), 0.0)


def _rounded(number: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << (max(number, 1) - 1).bit_length()


def bound_rank(jobs: int, coverage: float = COVERAGE, confidence: float = CONFIDENCE) -> int | None:
    """Return which of some waits, in increasing order from 1, is the upper bound.

    Returns
    -------
    None if there are too few waits for a bound.
    """
    ranks = np.arange(1, jobs + 1)
    sure = ranks[stats.binom.cdf(ranks - 1, jobs, coverage) >= confidence]
    return int(sure[0]) if len(sure) else None


def jobs_needed(coverage: float = COVERAGE, confidence: float = CONFIDENCE) -> int:
    """Return the least number of jobs that gives an upper bound, which is their longest wait."""
    return math.ceil(math.log(1 - confidence) / math.log(coverage))


def medians(found: Waits, draws: int, seed: int = 0) -> np.ndarray:
    """Return medians of resamples of the jobs, drawn with replacement; of shape (draws,).

    Parameters
    ----------
    found : the waits of at least one job.
    """
    random = np.random.default_rng(seed)
    return np.median(random.choice(found.seconds, size=(draws, found.jobs)), axis=1)


def test_only_wait(text: str, now: datetime) -> float | None:
    """Return the wait that `sbatch --test-only` prints, in seconds; None if it prints none.

    It is SLURM's own estimate, from the time limits of all jobs. It can be far too long, since jobs
    end before their limits, and too short, since other jobs may come first. While jobs without a
    limit have the nodes, it prints a year of five digits, which is none.
    """
    match = _TEST_ONLY.search(text)
    if match is None:
        return None
    return max((datetime.fromisoformat(match[1]) - now).total_seconds(), 0.0)
