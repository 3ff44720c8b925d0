"""Compare the predictions of two configurations for the same test rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from escala.core.files import read_json

Measurement = Mapping[str, Any]


class PairedRows(NamedTuple):
    """Test rows of several repeats, one after the other; int arrays of shape (rows,).

    Attributes
    ----------
    labels : the true class.
    baseline, other : the predicted classes.
    genomes : the number of a row's genome, the same in every split. Rows that SMOTEN made, or that
        are not from a genome, each have a negative number of their own, the same in every repeat
        of a split.
    """

    labels: np.ndarray
    baseline: np.ndarray
    other: np.ndarray
    genomes: np.ndarray


def split_folders(dataset_files: Iterable[str | Path]) -> dict[tuple[str, int], Path]:
    """Return the folder of every split by the name of its dataset and its seed.

    Parameters
    ----------
    dataset_files : the `dataset.json` of every split; its arrays are beside it.
    """
    descriptions = {Path(path).parent: read_json(Path(path)) for path in dataset_files}
    return {(d["dataset"], d["split_seed"]): folder for folder, d in descriptions.items()}


def paired_rows(
    pairs: Iterable[tuple[Measurement, Measurement]], folders: Mapping[tuple[str, int], Path]
) -> PairedRows:
    """Return the test rows of pairs of runs; a row occurs once for each pair that tested it.

    Parameters
    ----------
    pairs : baseline and other run, of one dataset and repeat, with the `file` each was read from;
        `predictions.npy` is beside it.
    folders : the result of `split_folders`.
    """
    tested, known, numbered = [], {}, 0
    for baseline, other in pairs:
        folder = folders[other["dataset"], other["data"]["split_seed"]]
        files = [folder / "test_labels.npy"]
        files += [Path(run["file"]).with_name("predictions.npy") for run in (baseline, other)]
        labels, *predicted = (np.load(file, allow_pickle=False) for file in files)
        if folder not in known:
            genomes, own = _genomes(folder, len(labels)), -1 - numbered - np.arange(len(labels))
            known[folder] = np.where(genomes < 0, own, genomes)
            numbered += len(labels)
        tested.append(np.stack([labels, *predicted, known[folder]]))
    return PairedRows(*np.concatenate(tested, axis=1))


def _genomes(folder: Path, rows: int) -> np.ndarray:
    """Return the number of each test row's genome in a split, or -1 for rows without one."""
    file = folder / "test_genomes.npy"
    return np.load(file, allow_pickle=False) if file.is_file() else np.full(rows, -1)
