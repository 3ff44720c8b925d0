"""The most frequent class, whatever the sequence: the score that needs no learning."""

from __future__ import annotations

import numpy as np

TRAINED_BY = "fit"
OPTIMIZER = "counting"


def fit(
    codes: np.ndarray, labels: np.ndarray, counts: np.ndarray, settings: dict
) -> dict[str, np.ndarray]:
    """Return the share of each class among the training rows before any was enlarged.

    Enlarged classes are often of equal size, which would leave the choice to chance. Where
    classes are enlarged before the split, the counts are those after it. Of classes that tie the
    first is predicted.

    Returns
    -------
    `shares`, float32 (classes,). Parameters as `escala.workloads` says.
    """
    return {"shares": (counts / counts.sum()).astype(np.float32)}


def shapes(classes: int, settings: dict) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights; see `escala.workloads`."""
    return {"shares": (classes,)}


def probabilities(weights: dict[str, np.ndarray], codes: np.ndarray) -> np.ndarray:
    """Return those shares for every row, float32 (rows, classes)."""
    return np.tile(weights["shares"], (len(codes), 1))
