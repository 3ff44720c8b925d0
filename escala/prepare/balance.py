"""Small classes enlarged by SMOTEN."""

from __future__ import annotations

import numpy as np
from imblearn.over_sampling import SMOTEN

from escala.errors import InputError


def balance(
    codes: np.ndarray,
    labels: np.ndarray,
    genomes: np.ndarray,
    classes: list[str],
    *,
    features: str,
    rows: dict[str, int] | None,
    neighbours: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Enlarge classes with imbalanced-learn's SMOTEN; the rows given stay first, in order.

    Parameters
    ----------
    codes : uint8 of shape (rows, length).
    labels : int array of shape (rows,), positions in `classes`.
    genomes : an identity for each row's whole genome, shape (rows,).
    features : `positions` makes each position a nominal feature. `sequence` makes the whole genome
        the only one, as the source work did: what it adds are verbatim copies.
    rows : wanted per class name; classes not named, or larger already, stay as they are. None
        enlarges every class to the largest.

    Returns
    -------
    Codes (uint8) and labels of the enlarged set.

    Raises
    ------
    InputError : a class to enlarge has no more rows than `neighbours`.
    """
    strategy, counts = rows_wanted(labels, classes, rows), np.bincount(labels)
    for label in strategy:
        if counts[label] <= neighbours:
            raise InputError(
                f"class {classes[label]}",
                int(counts[label]),
                f"rows are too few for SMOTEN with {neighbours} neighbours",
                "add records, lower oversample.neighbours, or set oversample.method: none",
            )
    if not strategy:
        return codes, labels
    smoten = SMOTEN(sampling_strategy=strategy, k_neighbors=neighbours, random_state=seed)
    if features == "positions":
        enlarged, new_labels = smoten.fit_resample(codes, labels)
        return enlarged.astype(np.uint8), new_labels
    _, first, identity = np.unique(genomes, return_index=True, return_inverse=True)
    copies, new_labels = smoten.fit_resample(identity.reshape(-1, 1), labels)
    sources = np.concatenate([np.arange(len(codes)), first[copies[len(codes) :, 0]]])
    return codes[sources], new_labels


def rows_wanted(
    labels: np.ndarray, classes: list[str], rows: dict[str, int] | None
) -> dict[int, int]:
    """Return how many rows each class to enlarge is to have, by label; parameters as `balance`."""
    counts = np.bincount(labels, minlength=len(classes))
    wanted = {name: int(counts.max()) for name in classes} if rows is None else rows
    return {
        label: wanted[name]
        for label, name in enumerate(classes)
        if wanted.get(name, 0) > counts[label]
    }
