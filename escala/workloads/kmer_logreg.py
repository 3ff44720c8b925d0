"""k-mer counts and logistic regression: what can be told without positions and without a network.

Counts of canonical k-mers are the same wherever a genome begins and on whichever strand it is
written.
"""

from __future__ import annotations

import numpy as np
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from escala.workloads import kmers

TRAINED_BY = "fit"
OPTIMIZER = "lbfgs"


def fit(
    codes: np.ndarray, labels: np.ndarray, counts: np.ndarray, settings: dict
) -> dict[str, np.ndarray]:
    """Fit scikit-learn's logistic regression, one probability per class, to k-mer frequencies.

    Parameters
    ----------
    codes, labels, counts, settings : as `escala.workloads` says; `settings` holds `k`, `C` and
        `max_iterations`.

    Returns
    -------
    `weights` float32 (classes, k-mers) and `intercepts` float32 (classes,). A class without
    training rows has the intercept -inf, hence probability 0.

    Raises
    ------
    ValueError : all training rows are of one class.
    """
    k, classes = settings["k"], len(counts)
    model = LogisticRegression(C=settings["C"], max_iter=settings["max_iterations"])
    model.fit(kmers.frequencies(codes, k), np.asarray(labels))
    coefficients, intercepts = model.coef_, model.intercept_
    if len(model.classes_) == 2:
        # Of two classes scikit-learn keeps the second's logit alone.
        coefficients = np.concatenate([np.zeros_like(coefficients), coefficients])
        intercepts = np.concatenate([[0.0], intercepts])
    weights = np.zeros((classes, kmers.columns(k)), np.float32)
    weights[model.classes_] = coefficients
    biases = np.full(classes, -np.inf, np.float32)
    biases[model.classes_] = intercepts
    return {"weights": weights, "intercepts": biases}


def shapes(classes: int, settings: dict) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights; see `escala.workloads`."""
    return {"weights": (classes, kmers.columns(settings["k"])), "intercepts": (classes,)}


def probabilities(weights: dict[str, np.ndarray], codes: np.ndarray) -> np.ndarray:
    """Return the probability of every class, float32 (rows, classes); see `escala.workloads`."""
    k = kmers.letters(weights["weights"].shape[1])
    return np.concatenate(
        [
            softmax(block @ weights["weights"].T + weights["intercepts"], axis=1)
            for block in kmers.frequency_blocks(codes, k)
        ]
    )
