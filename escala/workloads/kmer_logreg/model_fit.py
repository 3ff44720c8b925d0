"""Logistic regression on k-mer counts: a baseline without positions and without neural network.

Counts of canonical k-mers depend neither on the start of a genome nor on its strand.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
from scipy import sparse
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

OPTIMIZER = "lbfgs"
#: Maximum letters, and cells of the table of counts, that are processed at a time: about 100 MB.
BLOCK_LETTERS, BLOCK_CELLS = 2**22, 2**22
LETTERS = 4
#: Longest k-mer that is counted.
MOST_LETTERS = 8
#: Number of codes, with code 0 for every other letter and for padding.
CODES = LETTERS + 1


def fit(inputs, targets, counts, settings) -> dict[str, np.ndarray]:
    """Fit scikit-learn's logistic regression, one probability per class, to k-mer frequencies.

    The arguments are described in `escala.workloads`; the only input is codes, uint8 (rows,
    length). The weights are `weights`, float32 (classes, k-mers), and `intercepts`, float32
    (classes,). A class without training rows has the intercept -inf, hence probability 0. Training
    rows of a single class are a ValueError.
    """
    [codes], k, classes = inputs, settings["k"], len(counts)
    model = LogisticRegression(C=settings["C"], max_iter=settings["max_iterations"])
    model.fit(frequencies(codes, k), np.asarray(targets))
    coefficients, intercepts = model.coef_, model.intercept_
    if len(model.classes_) == 2:
        # For two classes scikit-learn keeps only the logit of the second class.
        coefficients = np.concatenate([np.zeros_like(coefficients), coefficients])
        intercepts = np.concatenate([[0.0], intercepts])
    weights = np.zeros((classes, count_canonical(k)), np.float32)
    weights[model.classes_] = coefficients
    biases = np.full(classes, -np.inf, np.float32)
    biases[model.classes_] = intercepts
    return {"weights": weights, "intercepts": biases}


def shapes(specs, outputs, settings) -> dict[str, tuple]:
    """Return the shapes of the weights; see `escala.workloads`."""
    return {"weights": (*outputs, count_canonical(settings["k"])), "intercepts": outputs}


def probabilities(weights, inputs) -> np.ndarray:
    """Return the probability of every class, float32 (rows, classes); see `escala.workloads`."""
    [codes] = inputs
    k = word_length(weights["weights"].shape[1])
    kernel, bias = weights["weights"].T, weights["intercepts"]
    blocks = frequency_blocks(codes, k)
    return np.concatenate([softmax(block @ kernel + bias, axis=1) for block in blocks])


def count_canonical(k: int) -> int:
    """Return the number of canonical k-mers: 32, 136, 512, 2080 for k from 3 to 6.

    If k is even, 4^(k/2) of the 4^k words equal their reverse complement. A k below 1 or above 8 is
    a ValueError.
    """
    if k not in range(1, MOST_LETTERS + 1):
        raise ValueError(f"k is {k}, and not from 1 to {MOST_LETTERS}")
    palindromes = LETTERS ** (k // 2) if k % 2 == 0 else 0
    return (LETTERS**k + palindromes) // 2


def word_length(kmers: int) -> int:
    """Return k, the letters of a k-mer, by the number of canonical k-mers."""
    return next(k for k in range(1, MOST_LETTERS + 1) if count_canonical(k) == kmers)


def frequencies(codes: np.ndarray, k: int) -> np.ndarray | sparse.csr_array:
    """Return the k-mer counts of every row, scaled to Euclidean length 1.

    `codes` and `k` are as in `count_kmers`. The result is float32 (rows, canonical k-mers). It is
    sparse, to save memory, if a row is too short to hold half of the k-mers.
    """
    shape = (len(codes), count_canonical(k))
    if 2 * (codes.shape[1] - k + 1) < shape[1]:
        blocks = [sparse.csr_array(block) for block in frequency_blocks(codes, k)]
        return sparse.vstack([sparse.csr_array((0, shape[1]), dtype=np.float32), *blocks], "csr")
    table, start = np.empty(shape, np.float32), 0
    for block in frequency_blocks(codes, k):
        table[start : start + len(block)] = block
        start += len(block)
    return table


def frequency_blocks(codes: np.ndarray, k: int) -> Iterator[np.ndarray]:
    """Yield the rows of `frequencies`, float32, some at a time; a row without k-mers stays 0."""
    for block in count_kmers(codes, k):
        lengths = np.sqrt((block.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
        yield (block / np.maximum(lengths, 1)).astype(np.float32)


def count_kmers(codes: np.ndarray, k: int) -> Iterator[np.ndarray]:
    """Yield how often every canonical k-mer occurs in each row, some rows at a time.

    The result is int64 (some rows, canonical k-mers), with columns in alphabetical order. Of a
    k-mer and its reverse complement, the canonical k-mer is the first in the alphabet. `codes` are
    uint8 of shape (rows, length), A 1, C 2, G 3, T 4, all other letters 0. `k` is from 1 to 8.
    K-mers that hold code 0 are skipped. The needed memory does not grow with the rows.
    """
    rows, length = codes.shape
    width = count_canonical(k) + 1
    size = max(1, min(BLOCK_LETTERS // max(length, 1), BLOCK_CELLS // width))
    table = _column_of_word(k)
    for start in range(0, rows, size):
        block = codes[start : start + size]
        words = np.zeros((len(block), max(length - k + 1, 0)), np.uint32)
        for position in range(k):
            words *= CODES
            words += block[:, position : position + words.shape[1]]
        cells = table[words]
        cells += width * np.arange(len(block))[:, np.newaxis]
        block_counts = np.bincount(cells.ravel(), minlength=len(block) * width)
        yield block_counts.reshape(len(block), width)[:, :-1]


@cache
def _column_of_word(k: int) -> np.ndarray:
    """Return the column of every word of k codes, read as a number of base 5, int64.

    Words that hold code 0 have the column after the last.
    """
    words = np.arange(CODES**k)
    digits = words[:, np.newaxis] // CODES ** np.arange(k - 1, -1, -1) % CODES
    values = LETTERS ** np.arange(k - 1, -1, -1)
    forward = ((digits - 1) * values).sum(axis=1)
    backward = ((LETTERS - digits[:, ::-1]) * values).sum(axis=1)
    whole = (digits > 0).all(axis=1)
    table = np.full(len(words), count_canonical(k), np.int64)
    _, table[whole] = np.unique(np.minimum(forward, backward)[whole], return_inverse=True)
    return table
