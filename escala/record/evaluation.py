"""Scores of a run on the test rows, as scikit-learn defines them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: With more classes, scores by class and the confusion matrix are left out.
MOST_CLASSES = 100


def evaluate(labels: np.ndarray, predictions: np.ndarray, classes: list[str]) -> dict:
    """Score predictions against labels, both int arrays of shape (rows,).

    Returns
    -------
    Accuracy; precision, recall, F1 and support per class; their macro and weighted averages; the
    confusion matrix with true classes in rows and predicted ones in columns. A class that is never
    predicted has precision 0. A class without test rows has no scores (None), and averages are over
    the other classes. With more than `MOST_CLASSES` classes there are no scores by class and no
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

    evaluation = {
        "rows": len(labels),
        "accuracy": float(np.mean(labels == predictions)),
        "classes": classes,
        "macro": _scores_by_name(*scores("macro", tested)[:3], len(labels)),
        "weighted": _scores_by_name(*scores("weighted", tested)[:3], len(labels)),
    }
    if len(classes) <= MOST_CLASSES:
        per_class = zip(classes, zip(*scores(None, numbers), strict=True), strict=True)
        matrix = confusion_matrix(labels, predictions, labels=numbers)
        evaluation["per_class"] = {name: _scores_by_name(*row) for name, row in per_class}
        evaluation["confusion_matrix"] = matrix.tolist()
    return evaluation


def _scores_by_name(precision: float, recall: float, f1: float, support: int) -> dict:
    scores = {"precision": float(precision), "recall": float(recall), "f1": float(f1)}
    return (scores if support else dict.fromkeys(scores)) | {"support": int(support)}
