"""Estimate of the disk space that runs take, and the refusal of what does not fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from escala.cache import store
from escala.core import readable
from escala.core.errors import InputError
from escala.data import size_of
from escala.experiment import Experiment, Run
from escala.training.memory import Footprint

#: While a checkpoint is written, the one before it is kept.
CHECKPOINTS = 2


@dataclass(frozen=True)
class Disk:
    """The disk space that some runs will take in `results/`, in bytes.

    Attributes
    ----------
    arrays : of splits that do not exist yet, as far as their size is known.
    splits, unknown : the number of these splits, and how many of them have no known size.
    models : of kept models and the largest checkpoint; None if the models were not built.
    unbuilt : the number of runs that keep a model or checkpoints, of a size that is not known.
    """

    arrays: float
    splits: int
    unknown: int
    models: int | None
    unbuilt: int = 0

    @property
    def bytes(self) -> float:
        return self.arrays + (self.models or 0)


def disk(
    runs: list[Run],
    experiment: Callable[[str], Experiment],
    footprints: Mapping[Run, Footprint] | None = None,
) -> Disk:
    """Return the disk space that runs will take.

    Logs, predictions, tables, figures and the data that arrays are prepared from are left out.

    Parameters
    ----------
    footprints : of the models, where they are known; None if they were not built.
    """
    splits = {}
    for run in runs:
        of_run = experiment(run.experiment)
        folder = Path(of_run.split_folder(run.dataset, of_run.split_seed(run.dataset, run.repeat)))
        if not (folder / "dataset.json").is_file():
            splits[folder] = size_of(of_run.datasets[run.dataset]).bytes
    known = [found for found in splits.values() if found is not None]
    unknown = len(splits) - len(known)
    if footprints is None:
        return Disk(sum(known), len(splits), unknown, None)
    training = {run: experiment(run.experiment).settings_of(run)["training"] for run in runs}
    built = {run: found for run, found in footprints.items() if run in training}
    unbuilt = [run for run in training if run not in built and _keeps(training[run])]
    models = _models(built, training)
    return Disk(sum(known), len(splits), unknown, models, len(unbuilt))


def _keeps(training: Mapping[str, Any]) -> bool:
    """Return whether a run that is trained by steps keeps a model or checkpoints."""
    return bool(training.get("save_model") or training.get("checkpoint_epochs"))


def _models(footprints: Mapping[Run, Footprint], trainings: Mapping[Run, Mapping]) -> int:
    """Return the bytes of the models that runs keep, and of the largest checkpoint."""
    kept, checkpoint = 0, 0
    for run, footprint in footprints.items():
        training = trainings[run]
        if training["save_model"]:
            kept += footprint.variables
        if training["checkpoint_epochs"]:
            best = footprint.variables if "early_stopping" in training else 0
            checkpoint = max(checkpoint, footprint.variables + footprint.optimizer + best)
    return kept + CHECKPOINTS * checkpoint


def sentence(found: Disk, results: Path) -> str:
    """Return a sentence on the disk space that runs will take, and on what is free.

    Parameters
    ----------
    results : folder of the results; it need not exist.
    """
    known, parts = found.splits - found.unknown, []
    if known or not found.unknown:
        parts = [
            f"{readable.size(found.arrays)} for the arrays of {readable.counted(known, 'split')}"
        ]
    if found.unknown:
        splits = readable.counted(found.unknown, "split")
        parts.append(f"unavailable for the arrays of {splits}, whose size is not known yet")
    if found.models or (found.models is not None and not found.unbuilt):
        parts.append(f"{readable.size(found.models)} for models and checkpoints")
    if found.unbuilt:
        runs = readable.counted(found.unbuilt, "run")
        parts.append(f"unavailable for the models and checkpoints of {runs}, which were not built")
    free, kept = _free(results), store.location()
    parts.append(f"{readable.size(free)} are free")
    if found.bytes > free:
        parts.append("it does not fit")
    elif kept is not None and (copies := _shared(found, results, kept)) > _free(kept):
        parts.append(
            f"the store {kept} takes copies, which need up to {readable.size(copies)} there, and "
            f"{readable.size(_free(kept))} are free: what does not fit is not stored"
        )
    return f"Estimated disk: {'; '.join(parts)}."


def require(found: Disk, results: Path) -> None:
    """Refuse runs whose files do not fit on the disk.

    Copies in the store do not count: without space for them, runs go on and are not stored.

    Raises
    ------
    InputError : with the space needed and free.
    """
    free = _free(results)
    if found.bytes > free:
        raise InputError(
            results,
            readable.size(found.bytes),
            f"is needed for arrays, and {readable.size(free)} are free",
            "free some space, ask for fewer splits or runs, or run in a folder on a larger disk",
        )


def _shared(found: Disk, results: Path, kept: Path) -> float:
    """Return the bytes needed on the store's disk, with those of the results if they share it."""
    same = _existing(results).stat().st_dev == _existing(kept).stat().st_dev
    return found.bytes * (2 if same else 1)


def _free(folder: Path) -> int:
    return shutil.disk_usage(_existing(folder)).free


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(each for each in (folder, *folder.parents) if each.is_dir())
