"""Simulate sequences of independent letters, some of which hold one instance of a motif."""

from __future__ import annotations

import numpy as np

#: TAL1_known4 of ENCODE, of the origin TRANSFAC M00993: probabilities of A, C, G and T by position.
TAL1 = np.array(
    [[0.25, 0, 0.25, 0.5], [0, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0.2, 0.4, 0.4],
     [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0.2, 0.4, 0.2, 0.2], [0, 0.4, 0, 0.6]]
)  # fmt: skip
#: Probabilities of A, C, G and T outside the motif, as in the source work (docs/systems/tal1.md).
BACKGROUND = np.array([0.3, 0.2, 0.2, 0.3])
#: Fraction of sequences with the motif.
POSITIVE = 0.5
#: An instance is drawn from the matrix · KEPT + ADDED: no letter is impossible.
KEPT, ADDED = 0.999, 0.00025


def sequences(
    matrix: np.ndarray, rows: int, length: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences of letters and whether each holds the motif.

    They are uint8 (rows, length), 0 to 3 for A, C, G and T; and int64 (rows,), 1 with the motif. A
    sequence with it is background into which one instance is written, at a position and on a strand
    drawn uniformly. `matrix` is float64 (positions, 4), rows of sum 1.
    """
    letters = _draw(BACKGROUND[None], random.random((rows, length)))
    labels = (random.random(rows) < POSITIVE).astype(np.int64)
    positive = np.flatnonzero(labels)
    width = len(matrix)
    instances = _draw(matrix * KEPT + ADDED, random.random((len(positive), width)))
    reverse = random.random(len(positive)) < 0.5
    # The complements of 0 to 3 are 3 to 0.
    instances[reverse] = 3 - instances[reverse, ::-1]
    begin = random.integers(0, length - width + 1, len(positive))
    letters[positive[:, None], begin[:, None] + np.arange(width)] = instances
    return letters, labels


def chance_sites(letters: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return which sequences hold a window, on either strand, that the motif's matrix allows.

    `letters` are uint8 (rows, length), 0 to 3. The matrix, float64 (positions, 4), does not allow a
    letter of probability 0. The result is bool (rows,).
    """
    with_site = np.zeros(len(letters), bool)
    for allowed in (matrix > 0, (matrix > 0)[::-1, ::-1]):
        windows = letters.shape[1] - len(matrix) + 1
        fits = np.ones((len(letters), windows), bool)
        for position, at in enumerate(allowed):
            fits &= at[letters[:, position : position + windows]]
        with_site |= fits.any(axis=1)
    return with_site


def _draw(probabilities: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Return letters, uint8 (rows, positions), of probabilities (positions or 1, 4)."""
    limits = probabilities.cumsum(axis=1)[:, :-1]
    return (uniform[..., None] >= limits).sum(axis=-1, dtype=np.uint8)
