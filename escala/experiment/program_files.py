"""The files of a program that determine its result: its scripts, and what these import."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from escala.experiment import launchers


def files_read(words: Sequence[str], folder: Path) -> list[str]:
    """Return the files of a program below a folder: those it names, and what its scripts import.

    Returns
    -------
    Patterns, sorted; those of files in the folder are relative to it. Files elsewhere that the
    command names belong to the program in any case.
    """
    named = [folder / word for word in words if (folder / word).is_file()]
    named += _modules(launchers.module(words) or "", folder)
    scripts, found = [file for file in named if file.suffix == ".py"], set(named)
    while scripts:
        script = scripts.pop()
        for file in _imported(script, folder):
            if file not in found:
                found.add(file)
                scripts.append(file)
    elsewhere = found - set(named)
    inside = {file for file in found if file.absolute().is_relative_to(folder)}
    return sorted(
        re.sub(
            r"([*?\[])",
            r"[\1]",
            file.relative_to(folder).as_posix() if file in inside else str(file.absolute()),
        )
        for file in inside | elsewhere
    )


def _imported(script: Path, folder: Path) -> Iterator[Path]:
    """Yield the files beside a script, or in the folder, that it imports."""
    try:
        tree = ast.parse(script.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    for level, name in launchers.imports(tree):
        places = [script.parents[level - 1]] if level else {script.parent, folder}
        for place in places:
            yield from _modules(name, place)


def _modules(name: str, place: Path) -> Iterator[Path]:
    """Yield the files of a module and of the packages that it is in, as far as they are there."""
    for part in filter(None, name.split(".")):
        place = place / part
        for file in (place.with_name(f"{part}.py"), place / "__init__.py", place / "__main__.py"):
            if file.is_file():
                yield file
