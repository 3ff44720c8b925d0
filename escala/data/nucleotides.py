"""Nucleotides: the records of a user's FASTA file, plain or packed, their codes, and k-mers.

Codes: A=1, C=2, G=3, T and U=4, all other signs 0; case is ignored.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.core.errors import InputError
from escala.core.text import open_text

#: Signs of gaps in an alignment.
GAPS = b"-."
#: The letters of the IUPAC nucleotide code (Cornish-Bowden, 1985), and the gap signs.
NUCLEOTIDES = b"ACGTUMRWSYKVHDBN" + GAPS
_CODES = {"A": 1, "C": 2, "G": 3, "T": 4, "U": 4}

# Tables for bytes.translate, Python's fastest lookup of bytes.
_TABLE = bytes(_CODES.get(chr(byte).upper(), 0) for byte in range(256))
_EITHER_CASE = NUCLEOTIDES + NUCLEOTIDES.lower()
#: `COMPLEMENT[code]` is the code of the complementary base (Watson and Crick, 1953); 0 stays 0.
COMPLEMENT = np.array([0, 4, 3, 2, 1], np.uint8)

#: Maximum letters of a written line, and of a text in a message.
LINE = 70
#: Maximum letters of a record and records of a file: 40 times the largest genome of a virus
#: (Pandoravirus salinus, 2.5 million), and twice the number of SARS-CoV-2 genomes in GenBank.
#: Without limits, a gzipped file of some megabytes could fill the memory.
RECORD_LETTERS, FILE_RECORDS = 100_000_000, 20_000_000
# A spreadsheet takes a text that begins with such a sign for a formula (OWASP, CSV injection). No
# accession begins so.
_FORMULA = tuple("=+-@＝＋－＠")


def _lines(handle: TextIO, path: Path) -> Iterator[str]:
    """Yield the lines of a FASTA file; too large records or files are refused."""
    count = length = 0
    while line := handle.readline(RECORD_LETTERS + 1):
        if line.startswith(">"):
            count, length = count + 1, 0
        length += len(line)
        if length > RECORD_LETTERS or count > FILE_RECORDS:
            reason = f"has more than {RECORD_LETTERS:,} letters"
            if count > FILE_RECORDS:
                reason = f"is one more than the {FILE_RECORDS:,} that a file may have"
            remedy = "check the file: it may have been made to fill the memory"
            raise InputError(path, f"record {count}", reason, remedy)
        yield line


def records(path: Path, identify: Callable[[str], str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield header (without `>`) and sequence of every record of a FASTA file.

    `identify` returns the accession in a header; by default, it is the first word.

    A file that is empty or not FASTA is refused. So is an accession that is missing, begins like a
    formula, or occurs twice.
    """
    with open_text(path) as handle:
        # The parser would silently skip text before the first header.
        first = next((line for line in _lines(handle, path) if line.strip()), None)
        if first is None:
            raise InputError(path, path.name, "is empty", "give at least one record")
        if not first.startswith(">"):
            reason = "is not FASTA: the first line is not a header"
            remedy = "start every record with >ACCESSION"
            raise InputError(path, first.strip()[:LINE], reason, remedy)
        handle.seek(0)
        accessions = set()
        for header, sequence in SimpleFastaParser(_lines(handle, path)):
            accession = identify(header) if identify else (header.split() or [""])[0]
            if not accession:
                reason = f"record {len(accessions) + 1} has no accession"
                remedy = "start its header with an accession, right after the >"
                raise InputError(path, f">{header}", reason, remedy)
            if accession.startswith(_FORMULA):
                reason = f"begins with {accession[0]}: a spreadsheet would take it for a formula"
                raise InputError(path, accession, reason, "rename the record")
            if accession in accessions:
                reason = f"record {len(accessions) + 1} is the second with this accession"
                remedy = "remove or rename one"
                if not identify and header.strip() != accession:
                    reason += f", which ends at the first space: >{header[:LINE]}"
                    remedy += "; in names with spaces, write another sign in their place"
                raise InputError(path, accession, reason, remedy)
            accessions.add(accession)
            yield header, sequence


def nucleotides(parsed: Iterable[tuple[str, str]], path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield accession and letters of each parsed record; refuse a record that is not nucleotides.

    Gaps are left out, because they are no letters of a genome.
    """
    for header, text in parsed:
        accession = (header.split() or ["(no name)"])[0]
        if not text:
            remedy = "remove it or fetch it again"
            raise InputError(path, accession, "the record has no sequence", remedy)
        sequence = letters(text)
        if not nucleotides_only(sequence):
            wrong = sorted(set(text) - set(_EITHER_CASE.decode()))
            shown = "".join(sign if sign.isprintable() else f"U+{ord(sign):04X}" for sign in wrong)
            reason = f"holds letters that are not nucleotides ({shown})"
            remedy = "write nucleotides in IUPAC letters, N for an unknown one; proteins are not "
            remedy += "read"
            raise InputError(path, accession, reason + _place(header, wrong, path), remedy)
        if not (genome := sequence.translate(None, GAPS)):
            raise InputError(path, accession, "the record holds gaps only", "remove it")
        yield accession, genome


def _place(header: str, signs: list[str], path: Path) -> str:
    """Return the line and column of the first of some signs in a record, as text.

    `header` may have an identifier in front of the header in the file.
    """
    inside, headers = False, (header.strip(), header.partition(" ")[2].strip())
    with open_text(path) as handle:
        for number, line in enumerate(handle, start=1):
            if line.startswith(">"):
                inside = line[1:].strip() in headers
            elif inside and (columns := [line.find(sign) for sign in signs if sign in line]):
                return f", first in line {number}, column {min(columns) + 1}"
    return ""


def write_record(handle: TextIO, header: str, sequence: str) -> None:
    """Write one FASTA record, its sequence in lines of 70 letters."""
    lines = [sequence[start : start + LINE] for start in range(0, len(sequence), LINE)]
    handle.write("\n".join([f">{header}", *lines, ""]))


def letters(sequence: str) -> bytes:
    """Return a sequence as bytes, one per letter; letters outside ASCII become `?`."""
    return sequence.encode("ascii", "replace")


def encode(sequence: bytes) -> bytes:
    """Return the code of every letter, one byte each."""
    return sequence.translate(_TABLE)


def nucleotides_only(sequence: bytes) -> bool:
    """Return whether all letters are in `NUCLEOTIDES`, as capital or small letters."""
    return not sequence.translate(None, _EITHER_CASE)


def reverse_complement(codes: np.ndarray) -> np.ndarray:
    """Return the reverse complement along the last axis of an array of codes (uint8)."""
    return COMPLEMENT[codes[..., ::-1]]


def kmers(codes: np.ndarray, k: int, strands: bool) -> np.ndarray:
    """Return the number of every k-mer of a sequence, int64, in order of its start.

    `codes` are uint8, 0 to 4, and `k` is at most 31. A k-mer is a number in base 4 with the digits
    A 0, C 1, G 2 and T 3. If `strands` is true, a k-mer and its reverse complement both get the
    smaller of their two numbers. K-mers with an ambiguous letter or padding are left out.
    """
    if len(codes) < k:
        return np.empty(0, np.int64)
    digits = (codes.astype(np.int64) - 1) & 3
    numbers = _numbers(digits, k)
    if strands:
        numbers = np.minimum(numbers, _numbers(3 - digits[::-1], k)[::-1])
    # The ambiguous letters before each position. A k-mer has none if both ends have equal counts.
    ambiguous = np.concatenate([[0], np.cumsum(codes == 0)])
    return numbers[ambiguous[k:] == ambiguous[:-k]]


def _numbers(digits: np.ndarray, k: int) -> np.ndarray:
    """Return the number of every `k` consecutive digits in base 4, int64 of shape (n - k + 1,).

    Two adjacent numbers are joined to one with twice the digits, as in exponentiation by squaring.
    """
    if k == 1:
        return digits
    half = _numbers(digits, k // 2)
    whole = (half[: len(half) - k // 2] << (2 * (k // 2))) + half[k // 2 :]
    return whole if k % 2 == 0 else (whole[: len(digits) - k + 1] << 2) + digits[k - 1 :]
