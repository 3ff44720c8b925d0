"""Letters to codes: A 1, C 2, G 3, T and U 4, anything else and padding 0, in either case."""

from __future__ import annotations

import numpy as np

#: The letters of the IUPAC nucleotide code (Cornish-Bowden, 1985), with the gap signs.
NUCLEOTIDES = b"ACGTUMRWSYKVHDBN-."
_CODES = {b"A": 1, b"C": 2, b"G": 3, b"T": 4, b"U": 4}

_TABLE = np.zeros(256, np.uint8)
for _letter, _code in _CODES.items():
    _TABLE[[ord(_letter), ord(_letter.lower())]] = _code

_IS_NUCLEOTIDE = np.zeros(256, bool)
_IS_NUCLEOTIDE[list(NUCLEOTIDES + NUCLEOTIDES.lower())] = True


def letters(sequence: str) -> np.ndarray:
    """Return a sequence as uint8 character codes; letters outside ASCII become `?`."""
    return np.frombuffer(sequence.encode("ascii", "replace"), np.uint8)


def encode(sequence: np.ndarray, length: int) -> np.ndarray:
    """Return the first `length` letters as codes.

    Parameters
    ----------
    sequence : uint8 character codes, any shape (n,).

    Returns
    -------
    uint8 of shape (length,), 0 where the sequence is shorter.
    """
    codes = np.zeros(length, np.uint8)
    start = sequence[:length]
    codes[: len(start)] = _TABLE[start]
    return codes


def foreign_letters(sequence: np.ndarray) -> str:
    """Return the letters of a sequence that no nucleotide code uses, each once, sorted."""
    return "".join(map(chr, np.unique(sequence[~_IS_NUCLEOTIDE[sequence]])))


def ambiguous(sequence: np.ndarray) -> int:
    """Return how many letters are not A, C, G, T or U."""
    return int(np.count_nonzero(_TABLE[sequence] == 0))
