"""Which files a program read, as its processes of Python tell (`escala/hook/escala_files.py`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from escala.core.errors import InputError
from escala.workloads.program import Program
from escala.workloads.program_copy import COPY
from escala.workloads.program_files import files


class Told(NamedTuple):
    """The files that the processes of a program read, and their numbers of threads.

    Attributes
    ----------
    read : paths of the files that they read, did not write, and left as they were.
    threads : `OMP_NUM_THREADS` at the end of each process, without repeats.
    """

    read: list[str]
    threads: set[str]


def told(marks: Path, since: float) -> Told | None:
    """Return what the processes of a program told, None if none did.

    Parameters
    ----------
    marks : the folder of their marks. The copy of the program's folder alongside may be gone.
    since : when the program began, in seconds since the epoch.
    """
    lines = [
        (line[:1], line[2:])
        for file in marks.glob("*.files")
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    if not lines:
        return None
    copy = str(marks.parent.resolve() / COPY)
    read, written = (
        {
            os.path.realpath(os.path.realpath(path).removeprefix(copy))
            for kind, path in lines
            if kind == each
        }
        for each in "rw"
    )
    left = [path for path in sorted(read - written) if _is_older(Path(path), since)]
    return Told(left, {value for kind, value in lines if kind == "t"})


def _is_older(file: Path, than: float) -> bool:
    try:
        return file.is_file() and file.stat().st_mtime < than
    except OSError:
        return False


def unlisted(
    read: Iterable[str], program: Program, paths: Iterable[str], folder: Path
) -> list[str]:
    """Return the files that a program read and that its key does not hold.

    They are neither among its files nor of its dataset, and belong to no cache and to no history of
    a repository.

    Parameters
    ----------
    read : absolute paths, without links.
    paths : of the dataset.
    folder : of the run.

    Returns
    -------
    Their paths, from the program's folder for those in it.
    """
    try:
        known = files(program.directory, program.command, program.files, program.where)
    except InputError:  # One of them is gone.
        known = set()
    known = {os.path.realpath(path) for path in known}
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    apart = [os.path.realpath(path) for path in (folder, caches, *paths)]
    found = []
    for path in map(Path, read):
        if str(path) in known or ".git" in path.parts or any(map(path.is_relative_to, apart)):
            continue
        inside = path.is_relative_to(program.directory)
        found.append(path.relative_to(program.directory).as_posix() if inside else str(path))
    return found
