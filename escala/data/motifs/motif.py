"""The matrix of a motif: that of TAL1, or one from a file in JASPAR's or MEME's format."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Literal

import numpy as np
from Bio import motifs

from escala.core.errors import InputError

#: TAL1_known4 of ENCODE, of the origin TRANSFAC M00993: probabilities of A, C, G and T by position.
TAL1 = np.array(
    [
        [0.25, 0, 0.25, 0.5],
        [0, 1, 0, 0],
        [0, 1, 0, 0],
        [1, 0, 0, 0],
        [0, 0.2, 0.4, 0.4],
        [0, 1, 0, 0],
        [0, 0, 0, 1],
        [0, 0, 1, 0],
        [0.2, 0.4, 0.2, 0.2],
        [0, 0.4, 0, 0.6],
    ]
)
#: Biopython's names of the formats.
_FORMATS = {"jaspar": "jaspar", "meme": "minimal"}
#: The line before the probabilities in a MEME file.
_PROBABILITIES = "letter-probability matrix:"
#: Biopython gives round(probability · nsites), with 20 for a missing `nsites`. With this number
#: of sites the first 15 decimals of a probability stay.
_SITES = 10**15


def read_motif(path: Path, form: Literal["jaspar", "meme"]) -> np.ndarray:
    """Return the matrix of the only motif in a file, float64 (positions, 4), by Biopython.

    Its columns are A, C, G and T.

    Raises
    ------
    InputError : the file is missing or holds no motif or several, or the motif has no position, or
        one without a letter or with a number that is negative or not finite.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if form == "meme":
            # Of several `nsites` in a line Biopython takes the first.
            text = text.replace(_PROBABILITIES, f"{_PROBABILITIES} nsites= {_SITES}")
        parsed = list(motifs.parse(StringIO(text), _FORMATS[form]))
    except FileNotFoundError:
        raise InputError(
            "source.motif.path", path, "no such file", "give the motif's file"
        ) from None
    except Exception as error:
        # Biopython raises whatever its parser met.
        words = str(error).rstrip(".") or type(error).__name__
        reason = f"cannot be read as a motif in the format {form}: {words}"
        raise InputError(path, path.name, reason, "give its format, or mend it") from error
    if len(parsed) != 1:
        raise InputError(path, f"{len(parsed)} motifs", "is not one motif", "keep one in the file")
    [motif] = parsed
    # The alphabet of an RNA motif is ACGU. Its U stands for T, as in the sequences that are read.
    numbers = np.array([motif.counts[letter] for letter in motif.alphabet], float).T
    if not len(numbers):
        raise InputError(path, path.name, "its motif has no position", "give it one at least")
    total = numbers.sum(axis=1)
    wrong = ~np.isfinite(numbers).all(axis=1) | (numbers < 0).any(axis=1) | (total == 0)
    if wrong.any():
        raise InputError(
            path,
            f"position {1 + int(wrong.argmax())}",
            "has no letter, or a number that is below 0 or not finite",
            "give each position of the motif numbers from 0, one of them above 0",
        )
    return numbers / total[:, None]
