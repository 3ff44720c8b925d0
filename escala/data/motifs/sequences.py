"""Read the sequences of a FASTA file, and encode letters for a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from escala.core.errors import InputError
from escala.data.encode import encode
from escala.data.fasta import nucleotides, records


def read_sequences(path: Path, length: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and codes, uint8 (length,), of each record: 1 to 4 for A, C, G, T, else 0.

    A file that is no nucleotide FASTA, and a sequence of another length, are refused.
    """
    for name, letters in nucleotides(records(path), path):
        if len(letters) != length:
            reason = f"has {len(letters)} letters, and length is {length}"
            remedy = f"give sequences of {length} letters, or set length"
            raise InputError(path, name, reason, remedy)
        yield name, np.frombuffer(encode(letters), np.uint8)


def one_hot(codes: np.ndarray) -> np.ndarray:
    """Return uint8 (rows, length, 4) of codes (rows, length), 1 to 4; of code 0 all are 0."""
    return (codes[..., None] == np.arange(1, 5, dtype=np.uint8)).astype(np.uint8)
