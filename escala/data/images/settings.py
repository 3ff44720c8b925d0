"""The settings of a dataset of pictures: what fits together, and what its arrays depend on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.data.fractions import expected_rows, require_training_rows, split_of
from escala.data.paths import expanded_path
from escala.data.size import Size

#: Keys of a source that are paths of the user's.
PATHS = ("folder", "path")
#: Training and test pictures, height, width, colours and classes of the full MNIST and CIFAR-10.
FULL = {"idx": (60000, 10000, 28, 28, 1, 10), "cifar": (50000, 10000, 32, 32, 3, 10)}
#: Classes of simulated outlines, and height and width in pixels, as in the source work.
OUTLINES, OUTLINE_SIZE = 9, (148, 197)
_COLOURS = {"grey": 1, "rgb": 3}


def check(settings: Mapping[str, Any]) -> None:
    """Refuse fractions that leave no picture to train on."""
    if settings["source"]["type"] not in FULL:
        require_training_rows(settings["split"], "picture")


def acquisition(settings: Mapping[str, Any]) -> dict:
    """Return what decides the pictures besides the content of the user's files."""
    source = {key: value for key, value in settings["source"].items() if key not in PATHS}
    return source | {key: settings[key] for key in ("colour", "size")}


def inputs(settings: Mapping[str, Any]) -> list[Path]:
    """Return the user's folder or files."""
    source = settings["source"]
    return [Path(expanded_path(source[key], f"source.{key}")) for key in PATHS if key in source]


def preparation(settings: Mapping[str, Any]) -> dict:
    """Return the settings that the arrays depend on, and no others."""
    source = settings["source"]["type"]
    provenance = "simulated" if source == "outlines" else source
    return {"provenance": provenance, "store": settings["store"], "split": split_of(settings)}


def prepared_from(settings: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Return the pictures that the source was read into."""
    return {"source": folder / "source"}


def size(settings: Mapping[str, Any]) -> Size:
    """Return what the settings tell about a split, and the folders of a user's pictures."""
    source, split = settings["source"], settings["split"]
    form = (None, None, None)
    if source["type"] == "folders":
        # Imported here, because only these sources need it at the start of the workflow.
        from escala.data.images.pictures import listed

        try:
            pictures, _ = listed(*inputs(settings))
        except (InputError, OSError):
            return Size()
        given = {f"{side}_fraction": 0 for side in pictures if side != "train"}
        rows = expected_rows(pictures.pop("train"), split | given) | pictures
    elif source["type"] == "outlines":
        rows = expected_rows(OUTLINES * source["per_class"], split)
        form = (*OUTLINE_SIZE, 1)
    elif source["type"] in FULL:
        train, test, *form, _ = FULL[source["type"]]
        rows = expected_rows(train, split | {"test_fraction": 0}) | {"test": test}
    else:
        return Size()
    height, width = settings["size"] or form[:2]
    shape = height, width, _COLOURS.get(settings["colour"], form[2])
    image = {"name": "image", "shape": shape, "dtype": settings["store"]}
    return Size(rows, None if None in shape else (image,))
