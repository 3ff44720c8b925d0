"""The settings of a dataset of captions: what fits together, and what its arrays depend on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.core.text import read_text
from escala.data.paths import expanded_path
from escala.data.size import Size

#: Lists of Flickr8k, one of each side.
LISTS = ("train", "validation", "test")
#: The paths of a source of Flickr8k, in the order in which acquisition gets them.
PATHS = ("tokens", *LISTS)
#: What the features of its pictures are computed from, besides the names of the pictures.
PICTURES = ("pictures", "weights")
#: Its captions of each picture, and the numbers of VGG16's layer fc2.
CAPTIONS, FC2 = 5, 4096
DTYPE = "uint16"
#: What acquisition writes: captions, and for a simulation the features of each side.
CAPTIONS_FILE, FEATURES_FILE = "captions.json", "{side}_features.npy"
#: What the extraction writes: features of pictures, the name of the picture of each row, and times.
FEATURES, NAMES, EXTRACTION = "features.npy", "names.json", "extraction.json"


def check(settings: Mapping[str, Any]) -> None:
    """Refuse one list of pictures for two sides."""
    source = settings["source"]
    named: dict[str, str] = {}
    for side in () if _simulated(settings) else LISTS:
        other = named.setdefault(source[side], side)
        if other != side:
            reason = f"is the list of the side {other}"
            remedy = "name a list of other pictures for each side"
            raise InputError(f"source.{side}", source[side], reason, remedy)


def acquisition(settings: Mapping[str, Any]) -> dict:
    """Return what decides the captions of pictures, or scenes with their captions and features."""
    source = settings["source"]
    return dict(source) if _simulated(settings) else {"type": source["type"]}


def inputs(settings: Mapping[str, Any]) -> list[Path]:
    """Return the user's files, in the order of `PATHS`; none for a simulation."""
    return [] if _simulated(settings) else [_path(settings, key) for key in PATHS]


def extraction(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths of `PICTURES`, by name; none for a simulation."""
    keys = () if _simulated(settings) else PICTURES
    return {key: str(_path(settings, key)) for key in keys}


def _path(settings: Mapping[str, Any], key: str) -> Path:
    return Path(expanded_path(settings["source"][key], f"source.{key}"))


def _simulated(settings: Mapping[str, Any]) -> bool:
    return settings["source"]["type"] == "simulated"


def preparation(settings: Mapping[str, Any]) -> dict:
    """Return the settings that the arrays depend on, and no others.

    The digest of the weights does not change the arrays. It tells `queries` which network computed
    the features.
    """
    source = settings["source"]
    digest = {key: source[key] for key in ("weights_sha256",) if key in source}
    words = {key: settings[key] for key in ("words", "vocabulary")}
    return {"provenance": source["type"]} | words | digest


def prepared_from(settings: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Return the captions that the source was read into, and the features of pictures."""
    parts = ("source",) if _simulated(settings) else ("source", "features")
    return {part: folder / part for part in parts}


def size(settings: Mapping[str, Any]) -> Size:
    """Return what the settings tell about a split.

    The lists of Flickr8k tell how many pictures each side has, if they exist already.
    """
    source, simulated = settings["source"], _simulated(settings)
    captions = source["captions_per_picture"] if simulated else CAPTIONS
    features = source["features"] if simulated else FC2
    rows, untimed = source.get("pictures"), None
    if not simulated:
        rows = _listed(settings)
        pictures = f"{sum(rows.values())} pictures" if rows else "the pictures"
        untimed = f"the features of {pictures}"
    words = {"shape": (captions, settings["words"]), "dtype": DTYPE}
    inputs = (
        {"name": "features", "shape": (features,), "dtype": "float16"},
        {"name": "words", **words},
    )
    return Size(rows, inputs, {"name": "labels", **words}, untimed)


def _listed(settings: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the number of pictures in the list of each side, None if a list cannot be read."""
    try:
        lists = {side: read_text(_path(settings, side)) for side in LISTS}
    except InputError:
        return None
    return {side: sum(map(bool, map(str.strip, text.split("\n")))) for side, text in lists.items()}
