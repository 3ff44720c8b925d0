"""The settings of a dataset of files: where they are, and what their identity depends on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from escala.data.files.listed import require_usable, state
from escala.data.paths import expanded_path
from escala.data.size import Size


def check(settings: Mapping[str, Any]) -> None:
    """Refuse a path that is no file and no folder with files, or that cannot be read."""
    for key, path in paths(settings).items():
        require_usable(path, f"paths.{key}", settings["paths"][key])


def paths(settings: Mapping[str, Any]) -> dict[str, Path]:
    """Return the absolute path of each file or folder by name."""
    return {
        name: Path(expanded_path(text, f"paths.{name}")).absolute()
        for name, text in settings["paths"].items()
    }


def preparation(settings: Mapping[str, Any]) -> dict:
    """Return what the description depends on besides the content of the files.

    Snakemake looks at a folder's own time only. With the state of all files among the parameters of
    the rule, it notices a file that was changed inside.
    """
    found = state(paths(settings), "paths")
    return {"rows": settings.get("rows"), "identify": settings["identify"], "state": found}


def prepared_from(settings: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Return the user's files and folders."""
    return paths(settings)


def size(settings: Mapping[str, Any]) -> Size:
    """Return the rows, if they are stated; the form of a row is the program's own affair."""
    return Size({"train": settings["rows"]} if "rows" in settings else None, inputs=())
