"""Logistic regression on k-mer counts: a baseline without positions and without a network.

Counts of canonical k-mers depend neither on where a genome begins nor on its strand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from escala.data.base import Spec
from escala.workloads.kmer_logreg import kmers

OPTIMIZER = "lbfgs"


def fit(
    inputs: tuple[np.ndarray], targets: np.ndarray, counts: np.ndarray, settings: Mapping
) -> dict[str, np.ndarray]:
    """Fit scikit-learn's logistic regression, one probability per class, to k-mer frequencies.

    The arguments are described in `escala.workloads`; the only input is codes, uint8 (rows,
    length). The weights are `weights`, float32 (classes, k-mers), and `intercepts`, float32
    (classes,). A class without training rows has the intercept -inf, hence probability 0. Training
    rows that are all of one class are a ValueError.
    """
    [codes], k, classes = inputs, settings["k"], len(counts)
    model = LogisticRegression(C=settings["C"], max_iter=settings["max_iterations"])
    model.fit(kmers.frequencies(codes, k), np.asarray(targets))
    coefficients, intercepts = model.coef_, model.intercept_
    if len(model.classes_) == 2:
        # For two classes scikit-learn keeps only the logit of the second.
        coefficients = np.concatenate([np.zeros_like(coefficients), coefficients])
        intercepts = np.concatenate([[0.0], intercepts])
    weights = np.zeros((classes, kmers.columns(k)), np.float32)
    weights[model.classes_] = coefficients
    biases = np.full(classes, -np.inf, np.float32)
    biases[model.classes_] = intercepts
    return {"weights": weights, "intercepts": biases}


def shapes(specs: Sequence[Spec], outputs: tuple[int], settings: Mapping) -> dict[str, tuple]:
    """Return the shapes of the weights; see `escala.workloads`."""
    return {"weights": (*outputs, kmers.columns(settings["k"])), "intercepts": outputs}


def probabilities(weights: dict[str, np.ndarray], inputs: tuple[np.ndarray]) -> np.ndarray:
    """Return the probability of every class, float32 (rows, classes); see `escala.workloads`."""
    [codes] = inputs
    k = kmers.letters(weights["weights"].shape[1])
    return np.concatenate(
        [
            softmax(block @ weights["weights"].T + weights["intercepts"], axis=1)
            for block in kmers.frequency_blocks(codes, k)
        ]
    )
