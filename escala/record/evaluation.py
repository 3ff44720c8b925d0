"""Scores of a run on the test rows, with scikit-learn's definitions."""

from __future__ import annotations

import numpy as np


def score(targets: np.ndarray, predictions: np.ndarray, description: dict) -> dict:
    """Score the predicted classes of a dataset with that description; see `evaluate`."""
    return evaluate(targets, predictions, description["classes"])


def evaluate(labels: np.ndarray, predictions: np.ndarray, classes: list[str]) -> dict:
    """Score predictions against labels, both int arrays of shape (rows,).

    Returns
    -------
    Accuracy; precision, recall, F1 and support per class; their macro and weighted averages; the
    confusion matrix with true classes in rows and predicted ones in columns. A class never
    predicted has precision 0. A class without test rows cannot be scored: its scores are None, and
    averages are over the other classes.
    """
    # scikit-learn computes the same, and takes a second to import in every run.
    matrix = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(matrix, (labels, predictions), 1)
    right, predicted, actual = np.diag(matrix), matrix.sum(axis=0), matrix.sum(axis=1)
    shares = ((right, predicted), (right, actual), (2 * right, predicted + actual))
    scores = [part / np.maximum(whole, 1) for part, whole in shares]
    tested = actual > 0

    def averages(weights: np.ndarray | None) -> list[float]:
        return [np.average(score[tested], weights=weights) for score in scores]

    per_class = zip(*scores, actual, strict=True)
    return {
        "rows": len(labels),
        "accuracy": float(np.mean(labels == predictions)),
        "classes": classes,
        "per_class": {name: _named(*row) for name, row in zip(classes, per_class, strict=True)},
        "macro": _named(*averages(None), len(labels)),
        "weighted": _named(*averages(actual[tested]), len(labels)),
        "confusion_matrix": matrix.tolist(),
    }


def _named(precision: float, recall: float, f1: float, support: int) -> dict:
    values = {"precision": float(precision), "recall": float(recall), "f1": float(f1)}
    return (values if support else dict.fromkeys(values)) | {"support": int(support)}
