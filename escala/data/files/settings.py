"""The settings of a dataset of files: where they are, and what their identity depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.data.files.listed import require_usable, state
from escala.data.paths import expanded_path
from escala.data.size import Size


def check(
    name: str, settings: Mapping[str, Any], error: Callable[[str, object, str, str], InputError]
) -> None:
    """Refuse a path that is no file and no folder with files, or that cannot be read.

    Raises
    ------
    InputError : as `error` makes it.
    """
    for key, path in paths(settings).items():
        try:
            require_usable(path, f"datasets.{name}.paths.{key}", settings["paths"][key])
        except InputError as found:
            raise error(found.where, found.value, found.reason, found.remedy) from None


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
    """Return what the description depends on besides the content of the files.

    Snakemake looks at a folder's own time only. With the state of all files among the parameters of
    the rule, it notices a file that was changed inside.

    Raises
    ------
    InputError : a file cannot be read.
    """
    return {
        "rows": settings.get("rows"),
        "identify": settings["identify"],
        "state": state(paths(settings), "paths"),
    }


def prepared_from(settings: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Return the user's files and folders."""
    return paths(settings)


def size(settings: Mapping[str, Any]) -> Size:
    """Return the rows, if they are stated; the form of a row is the program's own affair."""
    return Size({"train": settings["rows"]} if "rows" in settings else None, inputs=())
