"""Genomes exported from ViruSurf's web page: `>ACCESSION`, then the sequence in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from Bio.SeqIO.FastaIO import FastaTwoLineParser

from escala.core.errors import InputError
from escala.data.genomes.acquire import files


def fetch(source: dict, classes: list[str], folder: Path) -> None:
    """Import the exported file of each class in `source["folder"]`, named and checked as `files`.

    Raises
    ------
    InputError : as in `files.fetch`, or a file is not laid out as ViruSurf exports it.
    """
    files.fetch(source, classes, folder, _exported_records)


def _exported_records(lines: files.Lines) -> Iterator[tuple[str, str]]:
    try:
        yield from FastaTwoLineParser(line for line in lines if line.strip())
    except (UnicodeDecodeError, InputError):
        raise
    except ValueError:
        # The parser's message holds the offending line, which may be a whole genome.
        raise InputError(
            lines.name,
            "a record",
            "is not one header and one line of sequence",
            "export it from ViruSurf again, or use source type files",
        ) from None
