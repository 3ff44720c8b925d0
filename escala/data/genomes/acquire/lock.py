"""The lock file of a dataset of genomes: its records with their digests, without sequences."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Collection, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from escala.core.errors import InputError
from escala.core.files import atomic
from escala.core.text import opened
from escala.data.fasta import records

COLUMNS = ["class", "accession", "length", "sha256"]
#: Maximum number of accessions in a message.
NAMED = 10


class Locked(NamedTuple):
    """A record: its class, accession, number of letters, and SHA-256 of the upper-case letters."""

    name: str
    accession: str
    length: int
    sha256: str


def digest(sequence: str) -> str:
    """Return the SHA-256 of the upper-case letters, in hexadecimal."""
    return hashlib.sha256(sequence.upper().encode()).hexdigest()


def lock_rows(folder: Path, classes: list[str]) -> Iterator[Locked]:
    """Yield a row per record of `{class}.fasta` in `folder`, classes in their order."""
    for name in classes:
        for header, sequence in records(folder / f"{name}.fasta"):
            yield Locked(name, header.split()[0], len(sequence), digest(sequence))


def write_lock(rows: list[Locked], lock: Path) -> None:
    """Write the rows as TSV."""
    with atomic(lock) as temporary, open(temporary, "w", newline="", encoding="utf-8") as handle:
        csv.writer(handle, delimiter="\t", lineterminator="\n").writerows([COLUMNS, *rows])


def read_lock(path: Path, classes: list[str]) -> dict[str, list[Locked]]:
    """Return the rows of each class of a lock file, in the order of the file.

    A file that is no lock file, an accession twice in a class, and a class without a row are
    refused.
    """
    found: dict[str, dict[str, Locked]] = {name: {} for name in classes}
    with opened(path, newline="") as handle:
        table = csv.reader(handle, delimiter="\t")
        if next(table, None) != COLUMNS:
            remedy = f"start with {', '.join(COLUMNS)}"
            raise InputError(path, "line 1", "is not the head of a lock file", remedy)
        for row in table:
            locked = _row(row)
            if locked is None:
                reason = "is not class, accession, length and SHA-256"
                remedy = "use the lock.tsv that Escala wrote, unchanged"
                raise InputError(path, f"line {table.line_num}", reason, remedy)
            if locked.accession in found.get(locked.name, ()):
                raise InputError(path, locked.accession, "is twice in a class", "remove a line")
            found.setdefault(locked.name, {})[locked.accession] = locked
    for name in classes:
        if not found[name]:
            raise InputError(path, name, "the class has no row", "lock the dataset again")
    return {name: [*found[name].values()] for name in classes}


def _row(row: list[str]) -> Locked | None:
    try:
        name, accession, length, sha256 = row
        locked = Locked(name, accession, int(length), sha256)
    except ValueError:
        return None
    return locked if accession and re.fullmatch("[0-9a-f]{64}", sha256) else None


def require_locked(made: list[Locked], locked: dict[str, list[Locked]], lock: Path) -> None:
    """Refuse records that are not exactly those of a lock file, in its order, by accession."""
    remedy = (
        "restore the records, or make a new lock: run without source.lock and use the lock.tsv "
        "alongside the sequences"
    )
    for name, expected in locked.items():
        have = {row.accession: row for row in made if row.name == name}
        want = {row.accession: row for row in expected}
        both = have.keys() & want.keys()
        for reason, accessions in (
            ("missing", want.keys() - have.keys()),
            ("of another length or digest", {a for a in both if have[a] != want[a]}),
            ("not in the lock", have.keys() - want.keys()),
        ):
            if accessions:
                raise InputError(lock, name, f"{listed(accessions)}: {reason}", remedy)
        for one, other in zip_longest(have, want):
            if one != other:
                raise InputError(lock, other, f"{one} is in its place", remedy)


def listed(accessions: Collection[str]) -> str:
    """Return accessions as text, the first `NAMED` of them."""
    names = sorted(accessions)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
