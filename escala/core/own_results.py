"""Folders of results that this project made: it writes into no other one."""

from __future__ import annotations

from pathlib import Path

from escala.core.errors import InputError

MARKER = ".escala"
_TEXT = "Escala made this folder, and replaces and removes files in it.\n"
#: What an earlier version, which wrote no marker, left in such a folder.
_EARLIER = ("runs/**/run.json", "data/*/*/dataset.json")


def is_own(folder: Path) -> bool:
    """Return whether this project made a folder."""
    return (folder / MARKER).is_file()


def require(folder: Path, remedy: str = "give the experiment another name") -> None:
    """Refuse a folder that somebody else made.

    Raises
    ------
    InputError : it is there and not empty, and holds neither the marker nor a result of a run.
    """
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
