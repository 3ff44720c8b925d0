"""Genomes from a user's folder: one FASTA file per class, plain or packed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from Bio.SeqIO.FastaIO import FastaTwoLineParser, SimpleFastaParser
from tqdm import tqdm

from escala.core.errors import InputError
from escala.data.fasta import Lines, nucleotides, records, write_record
from escala.data.genomes.acquire.paths import class_files


def fetch(source: dict, classes: list[str], folder: Path) -> None:
    """Copy the file of each class in `source["folder"]` to `{class}.fasta`, unpacked and wrapped.

    Headers and letters stay as they are. An accession, the first word of a header, may occur only
    once in a class: class and accession identify a record. Exports of ViruSurf's web page have
    `>ACCESSION`, then the sequence in one line; another layout is refused.
    """
    parser = _exported_records if source["type"] == "virusurf" else SimpleFastaParser
    for name, path in zip(classes, class_files(source, classes), strict=True):
        with open(folder / f"{name}.fasta", "w", encoding="utf-8") as fasta:
            for record in tqdm(records(path, parser), desc=name, unit="genome", disable=None):
                # A wrong record is refused here, where its file is the user's.
                next(nucleotides([record], path))
                write_record(fasta, *record)


def _exported_records(lines: Lines) -> Iterator[tuple[str, str]]:
    number = 0

    def lines_with_text() -> Iterator[str]:
        nonlocal number
        for line in lines:
            number += 1
            if line.strip():
                yield line

    try:
        yield from FastaTwoLineParser(lines_with_text())
    except (UnicodeDecodeError, InputError):
        raise
    except ValueError:
        # The parser's message would quote the offending line, which may be a whole genome.
        reason = "breaks the layout of one header and one line of sequence per record"
        remedy = "export the file from ViruSurf again, or set source.type: files"
        raise InputError(lines.name, f"line {number}", reason, remedy) from None
