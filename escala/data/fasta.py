"""Read the records of a user's FASTA file, plain or packed, and write records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.core.errors import InputError
from escala.core.text import opened
from escala.data.encode import GAPS, NUCLEOTIDES, letters, nucleotides_only

LINE = 70
#: Maximum letters of a record and records of a file: 40 times the largest genome of a virus
#: (Pandoravirus salinus, 2.5 million), and twice the number of SARS-CoV-2 genomes in GenBank.
#: Without limits, a gzipped file of some megabytes could fill the memory.
RECORD_LETTERS, FILE_RECORDS = 100_000_000, 20_000_000
# A spreadsheet takes text that begins with these for a formula (OWASP, CSV injection); no accession
# does.
_FORMULA = tuple("=+-@＝＋－＠")
#: Letters of amino acids that are no nucleotides; and those for several or any, for rare ones, and
#: the sign of a stop, which programs that mask also write into nucleotide sequences.
_AMINO, _SPECIAL = frozenset("EFILPQ"), frozenset("JOXZ*")
#: Fraction of such letters, and kinds of amino acids among them, from which a record counts as a
#: protein; proteins have about a third, and all six kinds.
PROTEIN, _KINDS = 0.05, 2
_NUCLEOTIDES = frozenset((NUCLEOTIDES + NUCLEOTIDES.lower()).decode())


class Lines(Iterator[str]):
    """The lines of a FASTA file with the path `name`; too large records or files are refused."""

    def __init__(self, handle: TextIO, path: Path):
        self.name = str(path)
        self._handle, self._records, self._letters = handle, 0, 0

    def __next__(self) -> str:
        line = self._handle.readline(RECORD_LETTERS + 1)
        if not line:
            raise StopIteration
        if line.startswith(">"):
            self._records, self._letters = self._records + 1, 0
        self._letters += len(line)
        if self._letters > RECORD_LETTERS or self._records > FILE_RECORDS:
            reason = f"has more than {RECORD_LETTERS:,} letters"
            if self._records > FILE_RECORDS:
                reason = f"is one more than the {FILE_RECORDS:,} that a file may have"
            remedy = "check the file: it may have been made to fill the memory"
            raise InputError(self.name, f"record {self._records}", reason, remedy)
        return line


def records(path: Path) -> Iterator[tuple[str, str]]:
    """Yield header (without `>`) and sequence of every record of a FASTA file.

    A file that is empty or not FASTA, and an accession that is missing, begins like a formula, or
    occurs twice, are refused.
    """
    with opened(path) as handle:
        # The parser would skip text before the first header silently.
        first = next((line for line in Lines(handle, path) if line.strip()), None)
        if first is None:
            raise InputError(path, path.name, "is empty", "give at least one record")
        if not first.startswith(">"):
            reason = "is not FASTA: the first line is not a header"
            raise InputError(
                path, first.strip()[:LINE], reason, "start every record with >ACCESSION"
            )
        handle.seek(0)
        yield from _distinct(SimpleFastaParser(Lines(handle, path)), path)


def _distinct(records: Iterator[tuple[str, str]], where: Path) -> Iterator[tuple[str, str]]:
    seen = set()
    for header, sequence in records:
        accession = (header.split() or [""])[0]
        if not accession:
            reason = f"record {len(seen) + 1} has no accession"
            remedy = "start its header with one, right after the >"
            raise InputError(where, f">{header}", reason, remedy)
        if accession.startswith(_FORMULA):
            reason = f"begins with {accession[0]}: a spreadsheet would take it for a formula"
            raise InputError(where, accession, reason, "rename the record")
        if accession in seen:
            reason, remedy = "two records have this accession", "remove or rename one"
            if header.strip() != accession:
                reason += f", which ends at the first space: >{header[:LINE]}"
                remedy += "; in names with spaces, write another sign in their place"
            raise InputError(where, accession, reason, remedy)
        seen.add(accession)
        yield header, sequence


def nucleotides(parsed: Iterable[tuple[str, str]], path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield accession and letters of each parsed record; refuse one that is no nucleotides.

    Gaps are no letters of a genome: they are left out.
    """
    for header, text in parsed:
        accession = (header.split() or ["(no name)"])[0]
        if not text:
            remedy = "remove it or fetch it again"
            raise InputError(path, accession, "the record has no sequence", remedy)
        sequence = letters(text)
        if not nucleotides_only(sequence):
            raise _foreign(accession, text, path)
        if not (genome := sequence.translate(None, GAPS)):
            raise InputError(path, accession, "the record holds gaps only", "remove it")
        yield accession, genome


def _foreign(accession: str, text: str, path: Path) -> InputError:
    """Return the error for a record that holds other letters than nucleotides.

    It names each of them, and the line of the first. Amino acids are called so if they are too many
    for a slip.
    """
    foreign = [letter for letter in text if letter not in _NUCLEOTIDES]
    kinds = sorted(set(foreign))
    shown = "".join(letter if letter.isprintable() else f"U+{ord(letter):04X}" for letter in kinds)
    capitals = {letter.upper() for letter in kinds}
    protein = (
        capitals <= _AMINO | _SPECIAL
        and len(capitals & _AMINO) >= _KINDS
        and len(foreign) >= PROTEIN * len(text)
    )
    reason = f"holds letters that are not nucleotides ({shown}){_place(accession, kinds, path)}"
    remedy = "write nucleotides in IUPAC letters, N for an unknown one"
    if protein:
        reason, remedy = f"{reason}, as a protein does", "give nucleotide sequences"
    return InputError(path, accession, reason, remedy)


def _place(accession: str, letters: list[str], path: Path) -> str:
    """Return the line and column of the first of some letters in a record, as text."""
    inside = False
    with opened(path) as handle:
        for number, line in enumerate(handle, start=1):
            if line.startswith(">"):
                inside = line[1:].split()[:1] == [accession]
            elif inside and (found := [line.find(letter) for letter in letters if letter in line]):
                return f", first in line {number}, column {min(found) + 1}"
    return ""


def write_record(handle: TextIO, header: str, sequence: str) -> None:
    """Write one FASTA record, its sequence in lines of 70 letters."""
    lines = [sequence[start : start + LINE] for start in range(0, len(sequence), LINE)]
    handle.write("\n".join([f">{header}", *lines, ""]))
