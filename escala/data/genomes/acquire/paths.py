"""Paths of the files that are named in the settings of a source of genomes.

The workflow calls these functions at every start, so this module imports no heavy library.
"""

from __future__ import annotations

from pathlib import Path

from escala.core.errors import InputError
from escala.data.paths import expanded_path

SUFFIXES = [
    suffix + compression for suffix in (".fasta", ".fa", ".fna") for compression in ("", ".gz")
]


def class_files(source: dict, classes: list[str]) -> list[Path]:
    """Return the file of each class in `source["folder"]`.

    Raises
    ------
    InputError : the folder is missing, or a class has no file, or more than one.
    """
    folder = Path(expanded_path(source["folder"], "source.folder"))
    if not folder.is_dir():
        raise InputError("source.folder", str(folder), "no such folder", "name an existing folder")
    return [_only_file(folder, name) for name in classes]


def accession_files(source: dict, classes: list[str]) -> list[Path]:
    """Return the files that list accessions, in the order of the classes.

    A class whose accessions are in the settings themselves has no such file.
    """
    lists = source.get("accessions", {})
    return [
        Path(expanded_path(lists[name], f"source.accessions.{name}"))
        for name in classes
        if isinstance(lists.get(name), str)
    ]


def _only_file(folder: Path, name: str) -> Path:
    files = [path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").is_file()]
    if not files:
        raise InputError(
            "source.folder",
            str(folder),
            f"holds no file for the class {name}",
            f"add {name}.fasta, .fa or .fna, plain or .gz, or remove the class",
        )
    if len(files) > 1:
        raise InputError(
            "source.folder",
            [path.name for path in files],
            f"several files for the class {name}",
            "keep one of them",
        )
    return files[0]
