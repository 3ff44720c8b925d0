"""Scores of a run on the test rows, with scikit-learn's definitions."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import classification_report, confusion_matrix


def evaluate(labels: np.ndarray, predictions: np.ndarray, classes: list[str]) -> dict:
    """Score predictions against labels, both int arrays of shape (rows,).

    Returns
    -------
    Accuracy; precision, recall, F1 and support per class; their macro and weighted averages; the
    confusion matrix with true classes in rows and predicted ones in columns. A class never
    predicted has precision 0.
    """
    numbers = list(range(len(classes)))
    report = classification_report(
        labels, predictions, labels=numbers, output_dict=True, zero_division=0
    )
    return {
        "rows": len(labels),
        "accuracy": float(np.mean(labels == predictions)),
        "classes": classes,
        "per_class": {name: _scores(report[str(i)]) for i, name in enumerate(classes)},
        "macro": _scores(report["macro avg"]),
        "weighted": _scores(report["weighted avg"]),
        "confusion_matrix": confusion_matrix(labels, predictions, labels=numbers).tolist(),
    }


def _scores(row: dict) -> dict:
    return {
        "precision": float(row["precision"]),
        "recall": float(row["recall"]),
        "f1": float(row["f1-score"]),
        "support": int(row["support"]),
    }
