"""The settings of a dataset of captions: what fits together, and what its arrays depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.data.paths import expanded_path
from escala.data.size import Size

#: Lists of Flickr8k, one of each side.
LISTS = ("train", "validation", "test")
#: The paths of a source of Flickr8k, in the order in which acquisition gets them.
PATHS = ("pictures", "tokens", *LISTS, "weights")
#: Its captions of each picture, and the features of VGG16's layer fc2.
CAPTIONS, FEATURES = 5, 4096
#: Files that acquisition writes and preparation reads; there is one of features for each side.
CAPTIONS_FILE, FEATURES_FILE = "captions.json", "{side}_features.npy"


def check(
    name: str, settings: Mapping[str, Any], error: Callable[[str, object, str, str], InputError]
) -> None:
    """Refuse one list of pictures for two sides.

    Raises
    ------
    InputError : as `error` makes it.
    """
    source = settings["source"]
    named: dict[str, str] = {}
    for side in LISTS if source["type"] == "flickr8k" else ():
        other = named.setdefault(source[side], side)
        if other != side:
            raise error(
                f"datasets.{name}.source.{side}",
                source[side],
                f"is the list of the side {other}",
                "name a list of other pictures for each side",
            )


def acquisition(settings: Mapping[str, Any]) -> dict:
    """Return what decides the features and captions besides the content of the user's files."""
    source = settings["source"]
    if source["type"] == "simulated":
        return dict(source)
    return {key: value for key, value in source.items() if key not in PATHS}


def inputs(settings: Mapping[str, Any]) -> list[Path]:
    """Return the user's files, in the order of `PATHS`; none for a simulation.

    Raises
    ------
    InputError : a variable in a path is not set.
    """
    source = settings["source"]
    if source["type"] == "simulated":
        return []
    return [Path(expanded_path(source[key], f"source.{key}")) for key in PATHS]


def preparation(settings: Mapping[str, Any]) -> dict:
    """Return the settings that the arrays depend on, and no others.

    The digest of the weights does not change the arrays. It tells `queries` which network computed
    the features.
    """
    source = settings["source"]
    return {
        "provenance": source["type"],
        "words": settings["words"],
        "vocabulary": settings["vocabulary"],
    } | {key: source[key] for key in ("weights_sha256",) if key in source}


def prepared_from(settings: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Return the features and captions that the source was read into."""
    return {"source": folder / "source"}


def size(settings: Mapping[str, Any]) -> Size:
    """Return what the settings tell about a split.

    Only the captions tell the vocabulary, so a model's output is unknown. Only lists tell how many
    pictures of Flickr8k each side has.
    """
    source = settings["source"]
    simulated = source["type"] == "simulated"
    captions = source["captions_per_picture"] if simulated else CAPTIONS
    words = {"shape": (captions, settings["words"]), "dtype": "uint16"}
    features = source["features"] if simulated else FEATURES
    inputs = (
        {"name": "features", "shape": (features,), "dtype": "float16"},
        {"name": "words", **words},
    )
    rows = source["pictures"] if simulated else None
    return Size(rows, inputs, targets={"name": "labels", **words})
