"""The stratified split into training and test rows."""

from __future__ import annotations

import numpy as np
from sklearn.model_selection import train_test_split

from escala.errors import InputError


def stratified_split(
    labels: np.ndarray, classes: list[str], test_fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers of the training and of the test rows, each in ascending order.

    Parameters
    ----------
    labels : int array of shape (rows,), positions in `classes`.

    Raises
    ------
    InputError : a class has too few records to stand on both sides.
    """
    counts = np.bincount(labels, minlength=len(classes))
    try:
        sides = train_test_split(
            np.arange(len(labels)), test_size=test_fraction, random_state=seed, stratify=labels
        )
        fewest = np.min([np.bincount(labels[s], minlength=len(classes)) for s in sides], axis=0)
    except ValueError:
        # scikit-learn refuses a class of one row, and a side with fewer rows than classes.
        fewest = np.where(counts == counts.min(), 0, counts)
    if not fewest.all():
        lacking = int(np.argmin(fewest))
        raise InputError(
            f"class {classes[lacking]}",
            int(counts[lacking]),
            f"records are too few for a split with test_fraction {test_fraction:g}: "
            "each class needs at least one row on either side",
            "add records, change test_fraction, or drop the class",
        )
    train, test = map(np.sort, sides)
    return train, test
