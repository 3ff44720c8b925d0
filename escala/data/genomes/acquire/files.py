"""The files that a source of genomes names, and the lock file of all records with digests.

The workflow asks for the files' paths at every start, so heavy libraries are imported on demand.
"""

import csv
import hashlib
import re
from collections.abc import Collection, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from escala.core.errors import InputError
from escala.core.text import PACKED_ENDINGS, open_text
from escala.data.paths import expand_path, is_hidden

#: Endings of FASTA files with nucleotides, in small or capital letters; a packed file has a second
#: ending.
ENDINGS = (".fasta", ".fas", ".fa", ".fna", ".ffn", ".fsa")
_FILE = re.compile(
    f"(.+)(?:{'|'.join(map(re.escape, ENDINGS))})(?:{'|'.join(map(re.escape, PACKED_ENDINGS))})?",
    re.IGNORECASE,
)
#: The columns of a lock file.
COLUMNS = ["class", "accession", "length", "sha256"]
#: Maximum number of accessions in a message.
NAMED = 10


def files_by_class(folder: Path) -> dict[str, list[Path]]:
    """Return the FASTA files of a folder by the names of their classes, in alphabetical order."""
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match and not is_hidden(path) and path.is_file():
            files.setdefault(match[1], []).append(path)
    return files


def class_files(source: dict, classes: list[str]) -> list[Path]:
    """Return the only file of each class in `source["folder"]`; refuse a class without a file."""
    where, folder = "source.folder", Path(expand_path(source["folder"], "source.folder"))
    if not folder.is_dir():
        raise InputError(where, str(folder), "no such folder", "name an existing folder")
    files = files_by_class(folder)
    for name in classes:
        names = [path.name for path in files.get(name, [])]
        if not names:
            reason = f"holds no file for the class {name}"
            remedy = f"add {name}.fasta (or {', '.join(ENDINGS[1:])}; plain, or with "
            remedy += f"{', '.join(PACKED_ENDINGS)}), or remove the class"
            raise InputError(where, str(folder), reason, remedy)
        if len(names) > 1:
            reason = f"several files for the class {name}"
            raise InputError(where, names, reason, "keep one file")
    return [files[name][0] for name in classes]


def accession_files(source: dict, classes: list[str]) -> list[Path]:
    """Return the files that list accessions; a list in the settings has no file."""
    lists = source.get("accessions", {})
    return [
        Path(expand_path(lists[name], f"source.accessions.{name}"))
        for name in classes
        if isinstance(lists.get(name), str)
    ]


def lock_file(source: dict) -> Path | None:
    """Return the earlier lock file that a source names, or None."""
    return Path(expand_path(source["lock"], "source.lock")) if "lock" in source else None


def fetch(source: dict, classes: list[str], folder: Path) -> None:
    """Copy the file of each class in `source["folder"]` to `{class}.fasta`, unpacked and wrapped.

    Headers and letters stay as they are. The first word of a header is the accession. An accession
    may occur only once in a class, because class and accession identify a record.
    """
    from tqdm import tqdm

    from escala.core.console import say
    from escala.data.nucleotides import nucleotides, records, write_record

    for name, path in zip(classes, class_files(source, classes), strict=True):
        gaps = 0
        with open(folder / f"{name}.fasta", "w", encoding="utf-8") as fasta:
            for record in tqdm(records(path), desc=name, unit="genome", disable=None):
                # A wrong record is refused here, so that the message names the user's file.
                [(_, genome)] = nucleotides([record], path)
                gaps += len(record[1]) - len(genome)
                write_record(fasta, *record)
        if gaps:
            say(f"{path}: its {gaps} gaps, as of an alignment, are no letters and are left out")


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
    """Yield a row for each record of `{class}.fasta` in `folder`, in the order of `classes`."""
    from escala.data.nucleotides import records

    for name in classes:
        for header, sequence in records(folder / f"{name}.fasta"):
            yield Locked(name, header.split()[0], len(sequence), digest(sequence))


def read_lock(path: Path, classes: list[str]) -> dict[str, list[Locked]]:
    """Return the rows of each class of a lock file, in the order of the file.

    A file that is no lock file, a repeated accession in a class, and a class without a row are
    refused.
    """
    rows: dict[str, dict[str, Locked]] = {name: {} for name in classes}
    with open_text(path, newline="") as handle:
        table = csv.reader(handle, delimiter="\t")
        if next(table, None) != COLUMNS:
            remedy = f"start with {', '.join(COLUMNS)}"
            raise InputError(path, "line 1", "is not the head of a lock file", remedy)
        for row in table:
            try:
                name, accession, length, sha256 = row
                locked = Locked(name, accession, int(length), sha256)
            except ValueError:
                locked = None
            if not (locked and accession and re.fullmatch("[0-9a-f]{64}", sha256)):
                reason = "is not class, accession, length and SHA-256"
                remedy = "use the lock.tsv that Escala wrote, unchanged"
                raise InputError(path, f"line {table.line_num}", reason, remedy)
            if locked.accession in rows.get(locked.name, ()):
                raise InputError(path, locked.accession, "is twice in a class", "remove a line")
            rows.setdefault(locked.name, {})[locked.accession] = locked
    for name in classes:
        if not rows[name]:
            raise InputError(path, name, "the class has no row", "lock the dataset again")
    return {name: [*rows[name].values()] for name in classes}


def require_locked(made: list[Locked], locked: dict[str, list[Locked]], lock: Path) -> None:
    """Refuse records that differ from the records of a lock file, or come in another order."""
    remedy = (
        "restore the records, or make a new lock: run without source.lock and use the lock.tsv "
        "alongside the sequences"
    )
    for name, expected in locked.items():
        have = {row.accession: row for row in made if row.name == name}
        want = {row.accession: row for row in expected}
        common = have.keys() & want.keys()
        for reason, accessions in (
            ("missing", want.keys() - have.keys()),
            ("of another length or digest", {a for a in common if have[a] != want[a]}),
            ("not in the lock", have.keys() - want.keys()),
        ):
            if accessions:
                raise InputError(lock, name, f"{join_names(accessions)}: {reason}", remedy)
        for accession, wanted in zip_longest(have, want):
            if accession != wanted:
                raise InputError(lock, wanted, f"{accession} is in its place", remedy)


def join_names(accessions: Collection[str]) -> str:
    """Return accessions as text, the first `NAMED` of them."""
    names = sorted(accessions)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
