"""Paths of the files that are named in the settings of a source of genomes.

The workflow calls these functions at every start, so this module imports no heavy library.
"""

from __future__ import annotations

import re
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
    """Return the only file of each class in `source["folder"]`; refuse a class without one."""
    where, folder = "source.folder", Path(expanded_path(source["folder"], "source.folder"))
    if not folder.is_dir():
        raise InputError(where, str(folder), "no such folder", "name an existing folder")
    found = files_by_class(folder)
    for name in classes:
        names = [path.name for path in found.get(name, [])]
        if not names:
            reason = f"holds no file for the class {name}"
            remedy = f"add {name}.fasta (or {', '.join(ENDINGS[1:])}; plain, or with "
            remedy += f"{', '.join(PACKED_ENDINGS)}), or remove the class"
            raise InputError(where, str(folder), reason, remedy)
        if len(names) > 1:
            reason = f"several files for the class {name}"
            raise InputError(where, names, reason, "keep one of them")
    return [found[name][0] for name in classes]


def accession_files(source: dict, classes: list[str]) -> list[Path]:
    """Return the files that list accessions; a class may have its list in the settings instead."""
    lists = source.get("accessions", {})
    return [
        Path(expanded_path(lists[name], f"source.accessions.{name}"))
        for name in classes
        if isinstance(lists.get(name), str)
    ]


def lock_file(source: dict) -> Path | None:
    """Return the earlier lock file whose records a source must give, if it names one."""
    return Path(expanded_path(source["lock"], "source.lock")) if "lock" in source else None
