"""The matrix of a motif: that of TAL1, or one from a file in JASPAR's or MEME's format."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Literal

import numpy as np
from Bio import motifs

from escala.core.errors import InputError
from escala.core.text import read_text

#: TAL1_known4 of ENCODE, of the origin TRANSFAC M00993: probabilities of A, C, G and T by position.
TAL1 = np.array(
    [[0.25, 0, 0.25, 0.5], [0, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0.2, 0.4, 0.4],
     [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0.2, 0.4, 0.2, 0.2], [0, 0.4, 0, 0.6]]
)  # fmt: skip
#: Biopython's names of the formats.
_FORMATS = {"jaspar": "jaspar", "meme": "minimal"}
#: The line before the probabilities in a MEME file.
_PROBABILITIES = "letter-probability matrix:"
#: Biopython gives round(probability · nsites), with 20 for a missing `nsites`. With this number
#: of sites the first 15 decimals of a probability stay.
_SITES = 10**15
#: The first words of a line that tell the format of a file.
_MARKS = {"MEME": "meme", ">": "jaspar", "<?xml": "XML"}
_MARKS |= dict.fromkeys(("AC", "ID", "VV", "NA", "DE", "P0", "PO", "XX"), "TRANSFAC")
#: The letter and the brackets of a row of JASPAR, and a row without brackets.
_LETTER = re.compile(r"^\s*[ACGT](?=\s*\[)|[\[\]]")
_BARE = re.compile(r"^([ \t]*[ACGT])[ \t]+([^\[\]\n]+)$", re.MULTILINE)
#: How far probabilities of a position may sum to another number than 1, from rounding.
_ROUNDED = 0.05

Lines = list[tuple[int, str]]


def read_motif(path: Path, form: Literal["jaspar", "meme"]) -> np.ndarray:
    """Return the matrix of the only motif in a file, float64 (positions, 4), by Biopython.

    Its columns are A, C, G and T. A file of another format, with no motif or several, and a motif
    that is cut short or whose numbers are no probabilities or counts, are refused.
    """
    text = read_text(path)
    _require_format(path, text, form)
    if form == "jaspar":
        text = _BARE.sub(r"\1 [ \2 ]", text)
    require = _require_letters if form == "jaspar" else _require_positions
    require(path, list(enumerate(text.splitlines(), start=1)))
    try:
        if form == "meme":
            # Of several `nsites` in a line Biopython takes the first.
            text = text.replace(_PROBABILITIES, f"{_PROBABILITIES} nsites= {_SITES}")
        parsed = list(motifs.parse(StringIO(text), _FORMATS[form]))
    except Exception as error:
        # Biopython raises whatever its parser met.
        words = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        reason = f"cannot be read as a motif in the format {form}: {words}"
        raise InputError(path, path.name, reason, "give its format, or correct it") from error
    if len(parsed) != 1:
        raise InputError(path, f"{len(parsed)} motifs", "is not one motif", "keep one in the file")
    [motif] = parsed
    # The alphabet of an RNA motif is ACGU. Its U stands for T, as in the sequences that are read.
    numbers = np.array([motif.counts[letter] for letter in motif.alphabet], float).T
    if not len(numbers):
        raise InputError(path, path.name, "its motif has no position", "give it one at least")
    return _probabilities(path, numbers / _SITES if form == "meme" else numbers, form)


def _probabilities(path: Path, numbers: np.ndarray, form: str) -> np.ndarray:
    """Return counts or probabilities of each position as probabilities; refuse what is neither."""
    total = numbers.sum(axis=1)
    wrong = ~np.isfinite(numbers).all(axis=1) | (numbers < 0).any(axis=1) | (total == 0)
    if wrong.any():
        reason = "has no letter, or a number that is below 0 or not finite"
        remedy = "give counts or probabilities of each letter, one of them above 0, and no log-odds"
        raise InputError(path, f"position {1 + int(wrong.argmax())}", reason, remedy)
    # Counts are whole numbers, and their sums need not agree.
    off = abs(total - 1) > _ROUNDED
    if off.any() and (form == "meme" or ((numbers % 1).any() and (numbers <= 1).all())):
        place = int(off.argmax())
        reason = f"has probabilities that sum to {total[place]:.3g}"
        raise InputError(path, f"position {place + 1}", reason, "correct it, so that they sum to 1")
    return numbers / total[:, None]


def _require_format(path: Path, text: str, form: str) -> None:
    """Refuse a file whose first line is that of another format."""
    first = (text.split(maxsplit=1) or [""])[0]
    found = _MARKS.get(">" if first.startswith(">") else first, form)
    if found != form:
        remedy = f"set format: {found}" if found in _FORMATS else "convert it to MEME's format"
        reason = f"is in the format {found}, and not in {form}"
        raise InputError(path, "line 1", reason, remedy)


def _require_letters(path: Path, lines: Lines) -> None:
    """Refuse motifs in JASPAR's format that do not have a row for each of A, C, G and T.

    Biopython takes the first four rows for them, also where the rows are positions, as HOMER and
    HOCOMOCO write them.
    """
    titled: list[tuple[int, list[str]]] = [(1, [])]
    for number, line in lines:
        if line.startswith(">"):
            titled.append((number, []))
        elif line.strip():
            titled[-1][1].append(line)
    for title, rows in titled:
        letters = sorted(row.strip()[0] for row in rows)
        numbers = [_LETTER.sub(" ", row).split() for row in rows]
        lengths = set(map(len, numbers))
        plain = all(map(_are_numbers, numbers)) and not any("[" in row for row in rows)
        # CIS-BP writes the number of the position before them.
        counted = lengths == {5} and "".join(row[0] for row in numbers) in ("1234", "0123")
        if plain and (lengths == {4} or counted):
            reason = "has rows of four numbers: they are or may be positions, as HOMER, HOCOMOCO "
            remedy = "write a row for each letter, as JASPAR does: A [ 0 9 1 ], then C, G and T"
            raise InputError(path, f"line {title}", f"{reason}and CIS-BP write them", remedy)
        closed = all(row.count("[") == row.count("]") for row in rows)
        lettered = closed and letters == list("ACGT") and all(map(_are_numbers, numbers))
        if rows and (len(rows) != 4 or len(lengths) != 1 or not (plain or lettered)):
            reason = f"has {len(rows)} rows, and not one of numbers for each of A, C, G and T"
            remedy = "write a row for each letter, all of one length: A [ 0 9 1 ], then C, G and T"
            raise InputError(path, f"line {title}", reason, remedy)


def _require_positions(path: Path, lines: Lines) -> None:
    """Refuse motifs in MEME's format without as many rows, of four numbers, as they announce."""
    for at, (number, line) in enumerate(lines):
        if not line.startswith(_PROBABILITIES):
            continue
        rows = 0
        for place, row in lines[at + 1 :]:
            words = row.split()
            if not words or not _are_numbers(words[:1]):
                break
            if len(words) != 4 or not _are_numbers(words):
                reason = f"has {len(words)} words, and not four numbers"
                remedy = "give a motif of DNA or RNA, or copy the file again"
                raise InputError(path, f"line {place}", reason, remedy)
            rows += 1
        announced = re.search(r"\bw=\s*(\d+)", line)
        if announced and int(announced[1]) != rows:
            reason = f"announces {announced[1]} positions, and {rows} follow"
            raise InputError(path, f"line {number}", reason, "copy the file again, or correct w=")


def _are_numbers(words: list[str]) -> bool:
    try:
        return all(isinstance(float(word), float) for word in words)
    except ValueError:
        return False
