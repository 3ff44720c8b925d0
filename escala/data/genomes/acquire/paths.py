"""Paths of the files that are named in the settings of a source of genomes.

The workflow calls these functions at every start, so this module imports no heavy library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from escala.core.errors import InputError
from escala.core.text import PACKED_ENDINGS
from escala.data.paths import expanded_path, is_hidden

#: Endings of FASTA files with nucleotides, in small or capital letters; a packed file has one more.
ENDINGS = (".fasta", ".fas", ".fa", ".fna", ".ffn", ".fsa")
_FILE = re.compile(
    f"(.+)(?:{'|'.join(map(re.escape, ENDINGS))})(?:{'|'.join(map(re.escape, PACKED_ENDINGS))})?",
    re.IGNORECASE,
)


def files_by_class(folder: Path) -> dict[str, list[Path]]:
    """Return the FASTA files of a folder by the names of their classes, in alphabetical order."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match and not is_hidden(path) and path.is_file():
            found.setdefault(match[1], []).append(path)
    return found


def class_files(source: dict, classes: list[str]) -> list[Path]:
    """Return the file of each class in `source["folder"]`.

    Raises
    ------
    InputError : the folder is missing, or a class has no file, or more than one.
    """
    folder = Path(expanded_path(source["folder"], "source.folder"))
    if not folder.is_dir():
        raise InputError("source.folder", str(folder), "no such folder", "name an existing folder")
    found = files_by_class(folder)
    return [_only_file(folder, name, found) for name in classes]


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


def _only_file(folder: Path, name: str, found: Mapping[str, list[Path]]) -> Path:
    files = found.get(name, [])
    if not files:
        raise InputError(
            "source.folder",
            str(folder),
            f"holds no file for the class {name}",
            f"add {name}.fasta (or {', '.join(ENDINGS[1:])}; plain, or with "
            f"{', '.join(PACKED_ENDINGS)}), or remove the class",
        )
    if len(files) > 1:
        raise InputError(
            "source.folder",
            [path.name for path in files],
            f"several files for the class {name}",
            "keep one of them",
        )
    return files[0]
