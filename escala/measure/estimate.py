"""The time of runs, estimated from earlier runs, and the job that the runs need on a cluster."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from escala.core.readable import duration, with_noun
from escala.experiment import Run
from escala.probes import PROBES
from escala.record.schema import read_session
from escala.runtime.layout import processes_per_node


def sentence(runs: Sequence[Run]) -> str:
    """Return a sentence on the number of `runs`, and on their time if it is known of all."""
    if not runs:
        return "No run has to be measured."
    seconds = [*map(medians(runs), runs)]
    about = "" if None in seconds else f", {duration(sum(seconds))} of training by earlier runs"
    return f"{with_noun(len(runs), 'run')} to measure{about}."


def medians(runs: Iterable[Run]) -> Callable[[Run], float | None]:
    """Return a function that gives, for one of `runs`, the median seconds of earlier runs, or None.

    The earlier runs have ended ok. They have the configuration of the run, or else its dataset and
    workload. For a probe that was never run, they are timing runs. Each file is read once.
    """
    measured: dict[tuple, list[float]] = defaultdict(list)
    for folder in dict.fromkeys(_task_folder(run) for run in runs):
        for path in sorted(folder.glob("*/*/*/*/*/sessions/*.json")):
            record = read_session(path)
            if record and record["status"] == "ok":
                *configuration, last = path.relative_to(folder).parts[:5]
                probe = next((part for part in last.split(".") if part in PROBES), None)
                for names in ((), tuple(configuration)):
                    measured[folder, probe, names].append(record["wall_seconds"])

    def median(run: Run) -> float | None:
        nearest_first = (
            measured[_task_folder(run), probe, names]
            for probe in (run.instrument, None)
            for names in (tuple(run.configuration), ())
        )
        return next((statistics.median(seconds) for seconds in nearest_first if seconds), None)

    return median


def _task_folder(run: Run) -> Path:
    """Return the folder of the runs of an experiment on a dataset with a workload."""
    return Path(run.folder).parents[4]


#: Minutes to ask for if no similar run was measured before.
UNKNOWN_MINUTES = 60
#: The factor by which runs may take longer; seconds to start a run; minutes to start the job.
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
    """The minutes to ask SLURM for, and words on how they were estimated."""

    minutes: int
    why: str


def shape(runs: Sequence[Run]) -> Shape:
    """Return the shape of a job that is large enough for each of some runs."""
    tasks = max(processes_per_node(run.layout, run.declared.strategy) for run in runs)
    cores = max(run.cores for run in runs)
    return Shape(max(run.layout.nodes for run in runs), tasks, ceil(cores / tasks))


def time_of(runs: Sequence[Run]) -> Time:
    """Return the time of a job that measures some runs, with a margin."""
    median = medians(runs)
    known = [seconds for run in runs if (seconds := median(run)) is not None]
    if not known:
        first = min((run.repeat for run in runs if run.repeat), default=None)
        together = with_noun(sum(run.repeat == first for run in runs), "run")
        why = (
            f"{UNKNOWN_MINUTES} minutes are a guess, because nothing similar was measured here "
            f"before. If the first repeat ({together}) may take longer, name --time. The job "
            "begins it in any case, and its times tell which further repeats fit"
        )
        return Time(UNKNOWN_MINUTES, why)
    # A run of unknown time counts as the mean of the known times.
    seconds = sum(known) / len(known) * len(runs)
    minutes = _MARGIN * (seconds + _START_SECONDS * len(runs)) / 60 + BEGIN_MINUTES
    rounded = _STEP * ceil(minutes / _STEP)
    why = (
        f"{duration(seconds)} are estimated from earlier runs; a quarter of it, {_START_SECONDS} s "
        f"for each start and {BEGIN_MINUTES} min are added"
    )
    return Time(rounded, why)
