"""Paths in a source: files of genomes, lists of accessions.

The workflow calls these functions at every start, so this module imports no heavy library.
"""

from __future__ import annotations

from pathlib import Path

from escala.core.errors import InputError
from escala.data.paths import expanded_path

SUFFIXES = [suffix + packed for suffix in (".fasta", ".fa", ".fna") for packed in ("", ".gz")]


def class_files(source: dict, classes: list[str]) -> list[Path]:
    """Return the file of each class in `source["folder"]`.

    Raises
    ------
    InputError : the folder is missing, or a class has no file or two.
    """
    origin = Path(expanded_path(source["folder"], "source.folder"))
    if not origin.is_dir():
        raise InputError("source.folder", str(origin), "no such folder", "name an existing folder")
    return [_only_file(origin, name) for name in classes]


def list_files(source: dict, classes: list[str]) -> list[Path]:
    """Return the files that list accessions of the classes, in their order."""
    lists = source.get("accessions", {})
    return [
        Path(expanded_path(lists[name], f"source.accessions.{name}"))
        for name in classes
        if isinstance(lists.get(name), str)
    ]


def _only_file(folder: Path, name: str) -> Path:
    found = [path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").is_file()]
    if not found:
        raise InputError(
            "source.folder",
            str(folder),
            f"holds no file for the class {name}",
            f"add {name}.fasta, .fa or .fna, plain or .gz, or remove the class",
        )
    if len(found) > 1:
        raise InputError(
            "source.folder",
            [path.name for path in found],
            f"two files for the class {name}",
            "keep one of them",
        )
    return found[0]
