"""Similarity of the test genomes of a split to its training genomes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from escala.core.files import atomic
from escala.data.genomes.prepare.similarity import Sketches, nearest


def write_similarity(split: Path, sketches: Path, output: Path) -> np.ndarray:
    """Write the similarity of the nearest training genome for every test row.

    Parameters
    ----------
    split : folder with `train_genomes.npy` and `test_genomes.npy`.
    sketches : file of the dataset's sketches, see `escala.data.genomes.prepare.similarity`.
    output : `.npy` to write.

    Returns
    -------
    float32 of shape (test rows,). NaN means unknown: a row that SMOTEN made, which is no genome, or
    a genome without a kept k-mer.
    """
    train, test = (
        np.load(split / f"{side}_genomes.npy", allow_pickle=False) for side in ("train", "test")
    )
    genomes, place = np.unique(test, return_inverse=True)
    found = np.full(len(genomes), np.nan, np.float32)
    matrix = Sketches.load(sketches).matrix()
    known = genomes >= 0
    known[known] = np.diff(matrix.indptr)[genomes[known]] > 0
    found[known], _ = nearest(matrix, np.unique(train[train >= 0]), genomes[known])
    with atomic(output) as temporary:
        np.save(temporary, found[place], allow_pickle=False)
    return found[place]
