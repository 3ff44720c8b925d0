"""Prediction of the most frequent class for any sequence: a baseline that learns nothing."""

from __future__ import annotations

import numpy as np

OPTIMIZER = "counting"


def fit(inputs, targets, counts, settings) -> dict[str, np.ndarray]:
    """Return the fraction of each class among the training rows before oversampling.

    The result has `fractions`, float32 (classes,). Oversampled classes often have equal sizes, so
    their counts could not choose a class. If classes are oversampled before the split, the counts
    are counts after oversampling. Of equally frequent classes the first is predicted.
    """
    return {"fractions": (counts / counts.sum()).astype(np.float32)}


def shapes(specs, outputs, settings) -> dict[str, tuple]:
    """Return the shapes of the weights; see `escala.workloads`."""
    return {"fractions": outputs}


def probabilities(weights, inputs) -> np.ndarray:
    """Return the fractions for every row, float32 (rows, classes)."""
    return np.tile(weights["fractions"], (len(inputs[0]), 1))
