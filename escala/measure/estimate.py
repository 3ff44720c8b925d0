"""Estimates of the time and the disk space that the runs of a call take."""

from __future__ import annotations

import shutil
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from escala.cache import store
from escala.core.errors import InputError
from escala.core.readable import counted, duration, size
from escala.data import size_of
from escala.experiment import Experiment, Run
from escala.probes import PROBES
from escala.record.schema import read_session

Experiments = Callable[[str], Experiment]


def _split(run: Run, experiment: Experiment) -> Path:
    seed = experiment.split_seed(run.dataset, run.repeat)
    return Path(experiment.split_folder(run.dataset, seed))


def sentence(runs: list[Run], experiment: Experiments) -> str:
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
    untimed = {
        f"Not included for {run.dataset}: {what}, whose time is not known.": None
        for run, e in ((run, experiment(run.experiment)) for run in runs)
        if not (_split(run, e) / "dataset.json").is_file()
        and (what := size_of(e.datasets[run.dataset]).untimed)
    }
    text = f"Estimated training time of {counted(len(runs), 'run')}: {'; '.join(parts)}."
    return " ".join([text, *untimed])


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


@dataclass(frozen=True)
class Disk:
    """The disk space that some runs will take in `results/`, in bytes.

    Attributes
    ----------
    arrays : of splits that do not exist yet, as far as their size is known.
    splits, unknown : the number of these splits, and how many of them have no known size.
    """

    arrays: float
    splits: int
    unknown: int


def disk(runs: list[Run], experiment: Experiments) -> Disk:
    """Return the disk space that the arrays of runs will take.

    Models, checkpoints, logs, predictions, tables, figures and the data that arrays are prepared
    from are left out.
    """
    splits = {}
    for run in runs:
        folder = _split(run, experiment(run.experiment))
        if not (folder / "dataset.json").is_file():
            splits[folder] = size_of(experiment(run.experiment).datasets[run.dataset]).bytes
    known = [found for found in splits.values() if found is not None]
    return Disk(sum(known), len(splits), len(splits) - len(known))


def disk_sentence(found: Disk, results: Path) -> str:
    """Return a sentence on the disk space that runs will take, and on what is free.

    Parameters
    ----------
    results : folder of the results; it need not exist.
    """
    known, parts = found.splits - found.unknown, []
    if known or not found.unknown:
        parts = [f"{size(found.arrays)} for the arrays of {counted(known, 'split')}"]
    if found.unknown:
        splits = counted(found.unknown, "split")
        parts.append(f"unavailable for the arrays of {splits}, whose size is not known yet")
    free, kept = _free(results), store.location()
    parts.append(f"{size(free)} are free")
    if found.arrays > free:
        parts.append("it does not fit")
    elif kept is not None:
        same = _existing(results).stat().st_dev == _existing(kept).stat().st_dev
        copies = found.arrays * (2 if same else 1)
        if copies > _free(kept):
            parts.append(
                f"the store {kept} takes copies, which need up to {size(copies)} there, and "
                f"{size(_free(kept))} are free: what does not fit is not stored"
            )
    return f"Estimated disk: {'; '.join(parts)}."


def require_disk(found: Disk, results: Path) -> None:
    """Refuse runs whose files do not fit on the disk.

    Copies in the store do not count: without space for them, runs go on and are not stored.

    Raises
    ------
    InputError : with the space needed and free.
    """
    free = _free(results)
    if found.arrays > free:
        reason = f"is needed for arrays, and {size(free)} are free"
        remedy = (
            "free some space, ask for fewer splits or runs, or run in a folder on a larger disk"
        )
        raise InputError(results, size(found.arrays), reason, remedy)


def _free(folder: Path) -> int:
    return shutil.disk_usage(_existing(folder)).free


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(each for each in (folder, *folder.parents) if each.is_dir())
