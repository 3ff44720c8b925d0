"""The settings of a dataset of files: where they are, and what their identity depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.data.paths import expanded_path
from escala.data.size import Size


def check(
    name: str, settings: Mapping[str, Any], error: Callable[[str, object, str, str], InputError]
) -> None:
    """Refuse a path at which there is nothing.

    Raises
    ------
    InputError : as `error` makes it.
    """
    for key, path in paths(settings).items():
        if not path.exists():
            where = f"datasets.{name}.paths.{key}"
            raise error(where, settings["paths"][key], "there is no such file or folder", "mend it")


def paths(settings: Mapping[str, Any]) -> dict[str, Path]:
    """Return the absolute path of each file or folder by name.

    Raises
    ------
    InputError : a variable in a path is not set.
    """
    return {
        name: Path(expanded_path(text, f"paths.{name}")).absolute()
        for name, text in settings["paths"].items()
    }


def preparation(settings: Mapping[str, Any]) -> dict:
    """Return what the description depends on besides the content of the files."""
    return {"rows": settings.get("rows"), "identify": settings["identify"]}


def prepared_from(settings: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Return the user's files and folders."""
    return paths(settings)


def size(settings: Mapping[str, Any]) -> Size:
    """Return the rows, if they are stated; the form of a row is the program's own affair."""
    return Size({"train": settings["rows"]} if "rows" in settings else None)
