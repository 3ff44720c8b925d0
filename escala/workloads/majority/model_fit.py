"""Prediction of the most frequent class for any sequence: a baseline that learns nothing."""

from __future__ import annotations

import numpy as np

OPTIMIZER = "counting"


def fit(inputs, targets, counts, settings) -> dict[str, np.ndarray]:
    """Return the fraction of each class among the training rows before oversampling.

    It is `fractions`, float32 (classes,). Oversampled classes are often of equal size, which would
    leave the choice to chance. If classes are oversampled before the split, the counts are those
    after it. Of equally frequent classes the first is predicted.
    """
    return {"fractions": (counts / counts.sum()).astype(np.float32)}


def shapes(specs, outputs, settings) -> dict[str, tuple]:
    """Return the shapes of the weights; see `escala.workloads`."""
    return {"fractions": outputs}


def probabilities(weights, inputs) -> np.ndarray:
    """Return the fractions for every row, float32 (rows, classes)."""
    return np.tile(weights["fractions"], (len(inputs[0]), 1))
