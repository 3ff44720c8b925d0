"""The job of a session on a cluster: its nodes, tasks and cores, and its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from escala.core.readable import counted, duration
from escala.experiment import Run
from escala.measure import estimate
from escala.runtime.placement import processes_per_node

#: Minutes to ask for where nothing alike was measured before.
UNKNOWN_MINUTES = 60
#: How much longer than estimated runs may take; seconds to start a run; minutes to start the job.
_MARGIN, _START_SECONDS, BEGIN_MINUTES = 1.25, 15, 5
#: Minutes are rounded up to a multiple of this.
_STEP = 5


@dataclass(frozen=True)
class Shape:
    """The nodes of a job, the tasks on each and the cores of a task."""

    nodes: int
    tasks: int
    cores: int


@dataclass(frozen=True)
class Time:
    """The minutes to ask SLURM for, and where they come from."""

    minutes: int
    why: str


def shape(runs: Sequence[Run]) -> Shape:
    """Return what the largest layouts of some runs need."""
    tasks = max(processes_per_node(run.layout, run.declared.strategy) for run in runs)
    cores = max(run.cores for run in runs)
    return Shape(max(run.layout.nodes for run in runs), tasks, ceil(cores / tasks))


def time_of(runs: Sequence[Run]) -> Time:
    """Return the time of a job that measures some runs, with a margin."""
    median = estimate.medians(runs)
    known = [seconds for run in runs if (seconds := median(run)) is not None]
    if not known:
        first = min((run.repeat for run in runs if run.repeat), default=None)
        together = counted(sum(run.repeat == first for run in runs), "run")
        why = (
            f"{UNKNOWN_MINUTES} minutes are a guess, because nothing alike was measured here "
            f"before. If the first repeat ({together}) may take longer, name --time. The job "
            "begins it in any case, and its times tell which further repeats fit"
        )
        return Time(UNKNOWN_MINUTES, why)
    # Runs of which nothing is known count as much as the others.
    seconds = sum(known) / len(known) * len(runs)
    minutes = _MARGIN * (seconds + _START_SECONDS * len(runs)) / 60 + BEGIN_MINUTES
    rounded = _STEP * ceil(minutes / _STEP)
    why = f"{duration(seconds)} are estimated from earlier runs; a margin is added"
    return Time(rounded, why)
