"""The lock file of a dataset: which records it consists of, without their sequences."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

from escala.acquire.files import records
from escala.files import atomic

COLUMNS = ["class", "accession", "length", "sha256"]


def write_lock(folder: Path, classes: list[str], lock: Path) -> None:
    """Write a TSV with a row per record of `{class}.fasta` in `folder`, classes in their order.

    `length` counts letters; `sha256` is that of the upper-case sequence, in hexadecimal.
    """
    with atomic(lock) as temporary, open(temporary, "w", newline="", encoding="utf-8") as handle:
        rows = csv.writer(handle, delimiter="\t", lineterminator="\n")
        rows.writerow(COLUMNS)
        for name in classes:
            for header, sequence in records(folder / f"{name}.fasta"):
                digest = hashlib.sha256(sequence.upper().encode()).hexdigest()
                rows.writerow([name, header.split()[0], len(sequence), digest])
