"""Genomes exported from ViruSurf's web page: `>ACCESSION`, then the sequence in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from Bio.SeqIO.FastaIO import FastaTwoLineParser

from escala.core.errors import InputError
from escala.data.fasta import Lines
from escala.data.genomes.acquire import files


def fetch(source: dict, classes: list[str], folder: Path) -> None:
    """Import each class's exported file, as `files.fetch`; refuse another layout."""
    files.fetch(source, classes, folder, _exported_records)


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
