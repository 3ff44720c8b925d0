"""The lock file of acquired data: a digest of each file, which shows whether the data changed."""

from __future__ import annotations

import csv
from pathlib import Path

from escala.core.files import atomic, sha256_file

LOCK = "lock.tsv"
COLUMNS = ("file", "bytes", "sha256")


def write_lock(folder: Path) -> None:
    """Write `lock.tsv` into a folder: a row for each other file in it, by name."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != LOCK)
    rows = [(p.relative_to(folder).as_posix(), p.stat().st_size, sha256_file(p)) for p in paths]
    with (
        atomic(folder / LOCK) as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as handle,
    ):
        table = csv.writer(handle, delimiter="\t", lineterminator="\n")
        table.writerows([COLUMNS, *rows])
