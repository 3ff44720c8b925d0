"""The matrix of a motif: that of TAL1, or one from a file in JASPAR's or MEME's format."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Literal

import numpy as np
from Bio import motifs

from escala.core.errors import InputError

#: Order of the columns of a matrix.
ALPHABET = "ACGT"
#: TAL1_known4 of ENCODE, of the origin TRANSFAC M00993: probability of each letter by position.
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

    Raises
    ------
    InputError : the file is missing or holds no motif or several, or a position of the motif has no
        letter.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if form == "meme":
            # Of several `nsites` in a line Biopython takes the first.
            text = text.replace(_PROBABILITIES, f"{_PROBABILITIES} nsites= {_SITES}")
        found = list(motifs.parse(StringIO(text), _FORMATS[form]))
    except FileNotFoundError:
        raise InputError(
            "source.motif.path", path, "no such file", "give the motif's file"
        ) from None
    except Exception as error:
        # Biopython raises whatever its parser met.
        words = str(error).rstrip(".") or type(error).__name__
        reason = f"cannot be read as a motif in the format {form}: {words}"
        raise InputError(path, path.name, reason, "give its format, or mend it") from error
    if len(found) != 1:
        raise InputError(path, f"{len(found)} motifs", "is not one motif", "keep one in the file")
    counts = np.array([found[0].counts[letter] for letter in ALPHABET], float).T
    total = counts.sum(axis=1)
    if not np.isfinite(counts).all() or counts.min(initial=0) < 0 or not total.all():
        position = int(np.argmin(np.where(np.isfinite(total), total, 0))) + 1
        raise InputError(
            path,
            f"position {position}",
            "has no letter: all its numbers are 0, or one is below 0",
            "give each position of the motif a letter",
        )
    return counts / total[:, None]
