"""Genomes exported from ViruSurf's web page: `>ACCESSION`, then the sequence in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from Bio.SeqIO.FastaIO import FastaTwoLineParser

from escala.core.errors import InputError
from escala.data.genomes.acquire import files


def fetch(source: dict, classes: list[str], folder: Path) -> None:
    """Import each class's exported file in `source["folder"]`; names and checks as in `files`.

    Raises
    ------
    InputError : as in `files.fetch`, or a file does not have the layout of ViruSurf's exports.
    """
    files.fetch(source, classes, folder, _exported_records)


def _exported_records(lines: files.Lines) -> Iterator[tuple[str, str]]:
    try:
        yield from FastaTwoLineParser(line for line in lines if line.strip())
    except (UnicodeDecodeError, InputError):
        raise
    except ValueError:
        # The parser's message would repeat the wrong line, which may be a whole genome.
        raise InputError(
            lines.name,
            "a record",
            "is not one header and one line of sequence",
            "export it from ViruSurf again, or use source type files",
        ) from None
