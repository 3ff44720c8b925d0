"""The settings of a dataset of pictures: what fits together, and what its arrays depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.data.fractions import require_training_rows
from escala.data.paths import expanded_path

#: Keys of a source that are paths of the user's.
PATHS = ("folder", "path", "images", "labels")
#: Pictures, height, width and colours of the full training sides.
FULL = {"idx": (60000, 28, 28, 1), "cifar": (50000, 32, 32, 3)}
#: Classes of simulated outlines, and height and width in pixels, as in the source work.
OUTLINES, OUTLINE_SIZE = 9, (148, 197)


def check(
    name: str, settings: Mapping[str, Any], error: Callable[[str, object, str, str], InputError]
) -> None:
    """Refuse fractions that leave no picture to train on.

    Raises
    ------
    InputError : as `error` makes it.
    """
    if settings["source"]["type"] not in FULL:
        require_training_rows(name, settings["split"], error, "picture")


def acquisition(settings: Mapping[str, Any]) -> dict:
    """Return what decides the pictures besides the content of the user's files."""
    source = {key: value for key, value in settings["source"].items() if key not in PATHS}
    return source | {key: settings[key] for key in ("colour", "size")}


def inputs(settings: Mapping[str, Any]) -> list[Path]:
    """Return the user's folder or files.

    Raises
    ------
    InputError : a variable in a path is not set.
    """
    source = settings["source"]
    return [Path(expanded_path(source[key], f"source.{key}")) for key in PATHS if key in source]


def preparation(settings: Mapping[str, Any]) -> dict:
    """Return the settings that the arrays depend on, and no others."""
    return {
        "provenance": settings["source"]["type"],
        "store": settings["store"],
        "split": {key: value for key, value in settings["split"].items() if key != "seeds"},
    }


def prepared_from(settings: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Return the pictures that the source was read into."""
    return {"source": folder / "source"}


def size(settings: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Return the training rows and the numbers of a row, None where only the files tell them."""
    source, split = settings["source"], settings["split"]
    rest = 1 - split["validation_fraction"]
    if source["type"] == "outlines":
        form = OUTLINES * source["per_class"], *OUTLINE_SIZE, 1
        rest -= split["test_fraction"]
    elif source["type"] in FULL:
        form = FULL[source["type"]]
    else:
        return None, None
    rows, height, width, colours = form
    height, width = settings["size"] or (height, width)
    colours = {"grey": 1, "rgb": 3}.get(settings["colour"], colours)
    return rows * rest, height * width * colours
