"""Scores of a run on the test rows, as scikit-learn defines them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Scores of single classes, and the matrix whose size is their square, are kept of no more classes.
MOST_CLASSES = 100


def evaluate(labels: np.ndarray, predictions: np.ndarray, classes: list[str]) -> dict:
    """Score predictions against labels, both int arrays of shape (rows,).

    Returns
    -------
    Accuracy; precision, recall, F1 and support per class; their macro and weighted averages; the
    confusion matrix with true classes in rows and predicted ones in columns. A class that is never
    predicted has precision 0. A class without test rows has no scores (None), and averages are over
    the other classes. Of more than `MOST_CLASSES` classes there is neither scores by class nor a
    matrix.
    """
    # Imported here, because it takes a second that other processes need not spend.
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    numbers = range(len(classes))
    tested = np.flatnonzero(np.bincount(labels, minlength=len(classes)))

    def scores(average: str | None, among: Sequence[int]) -> tuple:
        return precision_recall_fscore_support(
            labels, predictions, labels=among, average=average, zero_division=0
        )

    scored = {
        "rows": len(labels),
        "accuracy": float(np.mean(labels == predictions)),
        "classes": classes,
        "macro": _scores_by_name(*scores("macro", tested)[:3], len(labels)),
        "weighted": _scores_by_name(*scores("weighted", tested)[:3], len(labels)),
    }
    if len(classes) <= MOST_CLASSES:
        per_class = zip(classes, zip(*scores(None, numbers), strict=True), strict=True)
        matrix = confusion_matrix(labels, predictions, labels=numbers)
        scored["per_class"] = {name: _scores_by_name(*row) for name, row in per_class}
        scored["confusion_matrix"] = matrix.tolist()
    return scored


def _scores_by_name(precision: float, recall: float, f1: float, support: int) -> dict:
    values = {"precision": float(precision), "recall": float(recall), "f1": float(f1)}
    return (values if support else dict.fromkeys(values)) | {"support": int(support)}
