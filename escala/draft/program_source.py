"""Read a program's scripts of Python, without starting them: what they import, read and call."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from escala.strategies import OPTIONS

#: Paths of places where a program may write; devices and what is installed are none.
_PLACE = re.compile(r"((~|\.\.)(?=/|$)|/(?!(dev|proc|sys|etc|usr|bin|lib)\b))[^\n]{0,200}")
#: Where a path stands that is a word of the command.
COMMAND = "the command"
#: The strategy of a program that starts its ranks itself.
OWN = "own-launcher"


def script(command: Sequence[str], folder: Path) -> Path | None:
    """Return the script of Python that a command names, None if it names none that is there."""
    files = (folder / word for word in command if word.endswith(".py"))
    return next(filter(Path.is_file, files), None)


def module(command: Sequence[str]) -> str | None:
    """Return the module of Python that a command names after `-m`."""
    return next(iter(command[command.index("-m") + 1 :]), None) if "-m" in command else None


def strategies(file: Path | None) -> dict[str, str]:
    """Return the strategies that a script is written for, each with what tells so."""
    tree = _parsed(file) if file else None
    if tree is None:
        return {}
    signs = {f"imports {name.partition('.')[0]}" for _, name in _imports(tree)} | {
        f"calls {node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
    }
    found = {
        name: option.signs[-1]
        for name, option in OPTIONS.items()
        if option.signs and signs.issuperset(option.signs)
    }
    # Processes that a script starts itself join a group by a call.
    join = {name for name, sign in found.items() if sign.startswith("calls")} - {OWN}
    left = join if join and OWN in found else {OWN}
    return {name: sign for name, sign in found.items() if name not in left}


def files_read(words: Sequence[str], folder: Path) -> list[str]:
    """Return the files of a program below a folder: those it names, and what its scripts import.

    Returns
    -------
    Patterns, sorted; those of files in the folder are relative to it. Files elsewhere that the
    command names belong to the program in any case.
    """
    named = [folder / word for word in words if (folder / word).is_file()]
    named += _modules(module(words) or "", folder)
    scripts, found = [file for file in named if file.suffix == ".py"], set(named)
    while scripts:
        for file in _imported(scripts.pop(), folder):
            if file not in found:
                found.add(file)
                scripts.append(file)
    patterns = []
    for file in found:
        if file.absolute().is_relative_to(folder):
            patterns.append(file.relative_to(folder).as_posix())
        elif file not in named:
            patterns.append(str(file.absolute()))
    return sorted(map(pattern, patterns))


def pattern(path: str) -> str:
    """Return the pattern of one file, which may be absolute: then it is none."""
    return path if path.startswith("/") else re.sub(r"([*?\[])", r"[\1]", path)


def _parsed(file: Path) -> ast.AST | None:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return None


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the level and the name of each module that a script imports, or may import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            yield node.level, name
            inner = (f"{name}.{alias.name}".strip(".") for alias in node.names)
            yield from ((node.level, each) for each in inner)


def _imported(script: Path, folder: Path) -> Iterator[Path]:
    """Yield the files alongside a script, or in the folder, that it imports."""
    tree = _parsed(script)
    for level, name in _imports(tree) if tree else ():
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


def places_named(words: Sequence[str], folder: Path) -> dict[str, str]:
    """Return absolute paths, those of the home folder, and those that lead up, of a program.

    Returns
    -------
    Each with where it stands: a word of the command, or a text in a script of Python. Those where
    the user may not write are left out.
    """
    found = {word.rpartition("=")[2]: COMMAND for word in words[1:]}
    for pattern in files_read(words, folder):
        file = folder / re.sub(r"\[([*?\[])\]", r"\1", pattern)
        tree = _parsed(file) if file.suffix == ".py" else None
        for node in ast.walk(tree) if tree else ():
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(node, ast.Attribute) and node.attr == "home":
                text = "~"
            if isinstance(text, str):
                found.setdefault(text, f"{file.name}, line {node.lineno}")
    return {text: where for text, where in found.items() if _is_writable_place(folder, text)}


def _is_writable_place(folder: Path, text: str) -> bool:
    """Return whether a text is a path that is there, or may be made where the user may write."""
    if not _PLACE.fullmatch(text):
        return False
    path = folder / os.path.expanduser(text)  # noqa: PTH111 - an unknown user is no error
    there = next(each for each in (path, *path.parents) if os.path.exists(each))  # noqa: PTH110
    return there != Path("/") and os.access(there, os.W_OK)
