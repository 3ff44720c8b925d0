"""Encode nucleotides: A=1, C=2, G=3, T and U=4, anything else 0; case is ignored."""

from __future__ import annotations

import numpy as np

#: Signs of gaps in an alignment.
GAPS = b"-."
#: The letters of the IUPAC nucleotide code (Cornish-Bowden, 1985), with the gap signs.
NUCLEOTIDES = b"ACGTUMRWSYKVHDBN" + GAPS
_CODES = {"A": 1, "C": 2, "G": 3, "T": 4, "U": 4}

# Tables for bytes.translate, Python's fastest lookup of bytes.
_TABLE = bytes(_CODES.get(chr(byte).upper(), 0) for byte in range(256))
_EITHER_CASE = NUCLEOTIDES + NUCLEOTIDES.lower()
#: `COMPLEMENT[code]` is the code of the complementary base (Watson and Crick, 1953); 0 stays 0.
COMPLEMENT = np.array([0, 4, 3, 2, 1], np.uint8)


def letters(sequence: str) -> bytes:
    """Return a sequence as bytes, one per letter; letters outside ASCII become `?`."""
    return sequence.encode("ascii", "replace")


def encode(sequence: bytes) -> bytes:
    """Return the code of every letter, one byte each."""
    return sequence.translate(_TABLE)


def nucleotides_only(sequence: bytes) -> bool:
    """Return whether all letters are `NUCLEOTIDES`, capital or small."""
    return not sequence.translate(None, _EITHER_CASE)


def reverse_complement(codes: np.ndarray) -> np.ndarray:
    """Return the reverse complement along the last axis of an array of codes (uint8)."""
    return COMPLEMENT[codes[..., ::-1]]
