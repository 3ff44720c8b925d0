"""Checkpoints: the state of a run after an epoch, from which the run can resume.

The folder `checkpoint/` alongside `run.json` holds one folder `epoch{n}/`, and `latest.json` with
the name of this folder and the digests of its files. So a run never resumes from an incomplete or
damaged checkpoint.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from escala.core.files import atomic, read_json, sha256_file, write_json

FOLDER = "checkpoint"
_LATEST, _VARIABLES, _BEST = "latest.json", "variables.npz", "best.npz"


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoints of one process of a run. `process` is the number of the process.

    A checkpoint is kept after each multiple of `every` epochs, and none if `every` is None. `run`
    is the digest of everything that determines the run. Checkpoints of other runs are refused.
    """

    folder: Path
    every: int | None
    run: str
    process: int

    def is_due(self, epoch: int) -> bool:
        """Return whether a checkpoint is kept after an epoch."""
        return self.every is not None and epoch % self.every == 0

    def keep(
        self,
        epoch: int,
        values: Sequence[np.ndarray],
        best: Sequence[np.ndarray] | None,
        state: dict,
        steps: Path,
        wait_for_all: Callable[[], object],
    ) -> None:
        """Keep the complete state after an epoch; every process calls this.

        `values` are the values of all variables of model and optimizer. `best` are the weights of
        the best epoch so far, None if the run keeps no best weights. `values` and `best` are equal
        in all processes, so only the first process keeps them. `state` is any other state of this
        process, as JSON values. `steps` is the file of step times, which is copied. `wait_for_all`
        waits for the other processes.
        """
        into = self.folder / f"epoch{epoch}"
        into.mkdir(parents=True, exist_ok=True)
        write_json(into / f"rank{self.process}.json", state)
        shutil.copy(steps, into / steps.name)
        if self.process == 0:
            for name, arrays in {_VARIABLES: values, _BEST: best or []}.items():
                with atomic(into / name) as temporary:
                    np.savez(temporary, *arrays)
        wait_for_all()
        if self.process == 0:
            files = sorted(path for path in into.iterdir() if path.is_file())
            digests = {file.name: sha256_file(file) for file in files}
            content = {"run": self.run, "epoch": epoch, "sha256": digests}
            write_json(self.folder / _LATEST, content)
            for older in self.folder.glob("epoch*"):
                if older != into:
                    shutil.rmtree(older)

    def restore(self, epoch: int, steps: Path) -> tuple[list[np.ndarray], dict]:
        """Return the variables' values after an epoch, and this process's state in the checkpoint.

        `steps` receives the step times up to this epoch.
        """
        kept = self.folder / f"epoch{epoch}"
        shutil.copy(kept / steps.name, steps)
        return _read(kept / _VARIABLES), read_json(kept / f"rank{self.process}.json")

    def best(self, epoch: int) -> list[np.ndarray]:
        """Return the weights of the best epoch so far, from the checkpoint after an epoch."""
        return _read(self.folder / f"epoch{epoch}" / _BEST)


def _read(path: Path) -> list[np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return [arrays[name] for name in arrays.files]


def latest(folder: Path, run: str | None = None) -> int | None:
    """Return the epoch after which the run in a folder can resume; None without whole checkpoint.

    `run` is the digest of everything that determines the run; None accepts the checkpoint of any
    run.
    """
    try:
        record = read_json(folder / FOLDER / _LATEST)
        kept = folder / FOLDER / f"epoch{record['epoch']}"
        whole = all(sha256_file(kept / name) == sha for name, sha in record["sha256"].items())
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record["epoch"] if whole and run in (None, record["run"]) else None


def count_bytes(folder: Path) -> int:
    """Return the size of the checkpoint of the run in a folder."""
    return sum(file.stat().st_size for file in (folder / FOLDER).rglob("*") if file.is_file())


def forget(folder: Path) -> None:
    """Remove the checkpoint of the run in a folder, if there is one."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
