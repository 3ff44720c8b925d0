"""Read the records of a user's FASTA file, plain or gzipped, and write records."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO

from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.core.errors import InputError
from escala.data.encode import foreign_letters, letters

LINE = 70
#: Maximum letters of a record and records of a file: 40 times the largest genome of a virus
#: (Pandoravirus salinus, 2.5 million), and twice the number of SARS-CoV-2 genomes in GenBank.
#: Without limits, a gzipped file of some megabytes could fill the memory.
RECORD_LETTERS, FILE_RECORDS = 100_000_000, 20_000_000
# A spreadsheet takes text that begins with these for a formula (OWASP, CSV injection); no accession
# does.
_FORMULA = tuple("=+-@＝＋－＠")


class Lines(Iterator[str]):
    """The lines of a FASTA file, with limits on its records.

    Attributes
    ----------
    name : path of the file.

    Raises
    ------
    InputError : a record has more letters than `RECORD_LETTERS`, or the file more records than
        `FILE_RECORDS`; reading stops there.
    """

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
        if self._letters > RECORD_LETTERS:
            raise self._too_much(f"has more than {RECORD_LETTERS:,} letters")
        if self._records > FILE_RECORDS:
            raise self._too_much(f"is one more than the {FILE_RECORDS:,} that a file may have")
        return line

    def _too_much(self, reason: str) -> InputError:
        remedy = "check the file: it may have been made to fill the memory"
        return InputError(self.name, f"record {self._records}", reason, remedy)


Parser = Callable[[Lines], Iterator[tuple[str, str]]]


def records(path: Path, parser: Parser = SimpleFastaParser) -> Iterator[tuple[str, str]]:
    """Yield header (without `>`) and sequence of every record of a FASTA file.

    Raises
    ------
    InputError : the file is missing, empty, damaged or not FASTA, or an accession is missing or
        occurs twice.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig") as handle:
            _require_fasta(handle, path)
            yield from distinct(parser(Lines(handle, path)), path)
    except FileNotFoundError:
        raise InputError(path, path.name, "no such file", "name an existing FASTA file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            path, str(error), "is truncated or not gzip", "make or download the file again"
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            path, path.name, "is not text", "give FASTA, with the suffix .gz if it is gzipped"
        ) from None


def distinct(records: Iterator[tuple[str, str]], where: object) -> Iterator[tuple[str, str]]:
    """Yield the headers and sequences, and check that every accession is unique.

    Raises
    ------
    InputError : an accession is missing, begins like a formula, or occurs again.
    """
    seen = set()
    for header, sequence in records:
        accession = (header.split() or [""])[0]
        if not accession:
            raise InputError(
                where,
                f">{header}",
                f"record {len(seen) + 1} has no accession",
                "start its header with one, right after the >",
            )
        if accession.startswith(_FORMULA):
            raise InputError(
                where,
                accession,
                f"begins with {accession[0]}: a spreadsheet would take it for a formula",
                "rename the record",
            )
        if accession in seen:
            raise InputError(
                where, accession, "two records have this accession", "remove or rename one"
            )
        seen.add(accession)
        yield header, sequence


def nucleotides(parsed: Iterable[tuple[str, str]], path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield accession and letters of each parsed record of the file `path`.

    Raises
    ------
    InputError : a record has no sequence, or holds letters that are not nucleotides.
    """
    for header, text in parsed:
        accession = (header.split() or ["(no name)"])[0]
        if not text:
            raise InputError(
                path, accession, "the record has no sequence", "remove it or fetch it again"
            )
        sequence = letters(text)
        foreign = foreign_letters(sequence)
        if foreign:
            raise InputError(
                path,
                accession,
                f"holds letters that are not nucleotides ({foreign}), as a protein's",
                "give nucleotide sequences in IUPAC letters",
            )
        yield accession, sequence


def write_record(handle: TextIO, header: str, sequence: str) -> None:
    """Write one FASTA record, its sequence in lines of 70 letters."""
    lines = [sequence[start : start + LINE] for start in range(0, len(sequence), LINE)]
    handle.write("\n".join([f">{header}", *lines, ""]))


def _require_fasta(handle: TextIO, path: Path) -> None:
    """Refuse text before the first header, which the parser would skip silently."""
    first = next((line for line in Lines(handle, path) if line.strip()), None)
    if first is None:
        raise InputError(path, path.name, "is empty", "give at least one record")
    if not first.startswith(">"):
        raise InputError(
            path,
            first.strip()[:LINE],
            "is not FASTA: the first line is no header",
            "start every record with >ACCESSION",
        )
    handle.seek(0)
