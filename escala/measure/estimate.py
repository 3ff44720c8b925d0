"""Estimates of the time that the runs of a call take, from runs that were measured before."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from escala.core.readable import counted, duration
from escala.experiment import Run
from escala.probes import PROBES
from escala.record.schema import read_session


def sentence(runs: list[Run]) -> str:
    """Return a sentence on how long `runs` take, from runs that were measured before.

    The estimate of a run is the median of earlier runs of its configuration, or else of its dataset
    and workload. Without these its time is unknown.
    """
    if not runs:
        return "Estimated training time: none, no run has to be measured."
    median = medians(runs)
    known = [seconds for run in runs if (seconds := median(run)) is not None]
    parts = []
    if known:
        source = f"for {len(known)} from earlier runs of the same experiment"
        parts.append(f"{duration(sum(known))} {source}")
    if unknown := len(runs) - len(known):
        parts.append(f"unknown for {unknown}, because nothing similar was measured here before")
    return f"Estimated training time of {counted(len(runs), 'run')}: {'; '.join(parts)}."


def medians(runs: Iterable[Run]) -> Callable[[Run], float | None]:
    """Return a function from one of `runs` to its median seconds before, None if there are none.

    They are those of its configuration, or else of its dataset and workload, in the sessions in
    which they ended ok. A run of a probe that was not run before takes about the time of a timing
    run. Each file is read once.
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
        found = (
            measured[_task_folder(run), probe, names]
            for probe in (run.instrument, None)
            for names in (tuple(run.configuration), ())
        )
        return next((statistics.median(seconds) for seconds in found if seconds), None)

    return median


def _task_folder(run: Run) -> Path:
    """Return the folder of the runs of an experiment on a dataset with a workload."""
    return Path(run.folder).parents[4]
