"""Genomes from a user's folder: one FASTA file per class, plain or gzipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from Bio.SeqIO.FastaIO import SimpleFastaParser
from tqdm import tqdm

from escala.data.fasta import Parser, nucleotides, records, write_record
from escala.data.genomes.acquire.paths import class_files


def fetch(
    source: dict, classes: list[str], folder: Path, parser: Parser = SimpleFastaParser
) -> None:
    """Copy the file of each class in `source["folder"]` to `{class}.fasta`, unpacked and wrapped.

    Headers and letters stay as they are. An accession, the first word of a header, may occur only
    once in a class: class and accession identify a record.

    Raises
    ------
    InputError : the folder is missing; a class has no file, or several; or as
        `escala.data.fasta.records` and `escala.data.fasta.nucleotides`.
    """
    for name, path in zip(classes, class_files(source, classes), strict=True):
        with open(folder / f"{name}.fasta", "w", encoding="utf-8") as fasta:
            found = _checked(records(path, parser), path)
            for header, sequence in tqdm(found, desc=name, unit="genome", disable=None):
                write_record(fasta, header, sequence)


def _checked(found: Iterable[tuple[str, str]], path: Path) -> Iterator[tuple[str, str]]:
    """Yield records of nucleotides. A wrong one is refused here, where its file is the user's."""
    for record in found:
        next(nucleotides([record], path))
        yield record
