"""From a source of genomes to one FASTA file per class and a lock file of checksums."""

from __future__ import annotations

from pathlib import Path

from escala.acquire import entrez, files, simulate, virusurf
from escala.acquire.lock import write_lock
from escala.errors import InputError
from escala.files import atomic

SOURCES = {
    "files": files.fetch,
    "ncbi": entrez.fetch,
    "simulated": simulate.fetch,
    "virusurf": virusurf.fetch,
}


def inputs(source: dict, classes: list[str]) -> list[Path]:
    """Return the files a source reads, so that a change of them is seen; none for the others.

    Raises
    ------
    InputError : the source is a folder, and lacks one of them.
    """
    return files.class_files(source, classes) if "folder" in source else []


def acquire(source: dict, classes: list[str], folder: Path, lock: Path) -> None:
    """Fill `folder` with `{class}.fasta` for every class, and write `lock`; both or neither.

    Parameters
    ----------
    source : the `source` of a dataset in the config; its `type` names a key of `SOURCES`.
    classes : class names, in the order of their labels.
    folder : replaced if it exists.
    lock : TSV of class, accession, length and sha256, see `lock.write_lock`.

    Raises
    ------
    InputError : the source cannot give the genomes asked for.
    """
    if source.get("type") not in SOURCES:
        raise InputError(
            "source.type", source.get("type"), "no such source", f"use one of {', '.join(SOURCES)}"
        )
    with atomic(folder) as temporary:
        temporary.mkdir()
        SOURCES[source["type"]](source, classes, temporary)
        write_lock(temporary, classes, lock)
