"""Folders of results that this project made: it writes into no other one."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from escala.core.errors import InputError

MARKER = ".escala"
_TEXT = "Escala made this folder, and replaces and removes files in it.\n"
#: What an earlier version, which wrote no marker, left in such a folder.
_EARLIER = ("runs/**/run.json", "data/*/*/dataset.json")


def is_own(folder: Path) -> bool:
    """Return whether this project made a folder."""
    return (folder / MARKER).is_file()


def require_folder(path: Path) -> None:
    """Refuse what stands in the place of a folder that is written, and is none.

    Raises
    ------
    InputError : it is a file, or a link to what is not there.
    """
    if not os.path.lexists(path) or path.is_dir():
        return
    reason, remedy = "is a file", f"rename {path.name}"
    if path.is_symlink() and not path.exists():
        reason = f"is a link to {path.readlink()}, which is not there"
        remedy = f"make that folder, or remove {path.name}"
    reason += ", where a folder of this name is written"
    raise InputError("working directory", str(path), reason, remedy)


def require(folder: Path, remedy: str = "give the experiment another name") -> None:
    """Refuse a folder that somebody else made.

    Raises
    ------
    InputError : it is there and not empty, and holds neither the marker nor a result of a run; or
        it is no folder.
    """
    require_folder(folder)
    if not folder.is_dir() or is_own(folder) or not any(folder.iterdir()):
        return
    if not any(next(folder.glob(pattern), None) for pattern in _EARLIER):
        reason = "is not a folder of Escala's, and it would replace files in it"
        remedy = f"{remedy}; or, if they may be replaced: touch {folder / MARKER}"
        raise InputError("results", str(folder), reason, remedy)


def claim(folder: Path) -> None:
    """Make a folder of results, and mark it.

    Raises
    ------
    InputError : as `require`.
    """
    require(folder)
    if not is_own(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).write_text(_TEXT, encoding="utf-8")


def hold(folder: Path) -> int:
    """Keep a claimed folder for this process until it ends; return the descriptor of its marker.

    Snakemake locks a working folder, and several of these may lead to one folder of results. Where
    the file system has no locks, nothing is kept.

    Raises
    ------
    InputError : another process holds it.
    """
    try:
        marker = os.open(folder / MARKER, os.O_RDWR)
    except PermissionError:  # It is another user's, or read-only.
        marker = os.open(folder / MARKER, os.O_RDONLY)
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(marker)
        reason = "another call writes results there, maybe in another working folder"
        raise InputError("results", str(folder), reason, "wait for its end") from None
    except OSError:  # The file system has no locks.
        pass
    return marker
