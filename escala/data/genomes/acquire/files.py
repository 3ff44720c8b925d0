"""Genomes from a user's folder: one FASTA file per class, plain or packed."""

from __future__ import annotations

from pathlib import Path

from tqdm import tqdm

from escala.core.console import say
from escala.data.fasta import nucleotides, records, write_record
from escala.data.genomes.acquire.paths import class_files


def fetch(source: dict, classes: list[str], folder: Path) -> None:
    """Copy the file of each class in `source["folder"]` to `{class}.fasta`, unpacked and wrapped.

    Headers and letters stay as they are. An accession, the first word of a header, may occur only
    once in a class: class and accession identify a record.
    """
    for name, path in zip(classes, class_files(source, classes), strict=True):
        gaps = 0
        with open(folder / f"{name}.fasta", "w", encoding="utf-8") as fasta:
            for record in tqdm(records(path), desc=name, unit="genome", disable=None):
                # A wrong record is refused here, where its file is the user's.
                [(_, genome)] = nucleotides([record], path)
                gaps += len(record[1]) - len(genome)
                write_record(fasta, *record)
        if gaps:
            say(f"{path}: its {gaps} gaps, as of an alignment, are no letters and are left out")
