"""The settings of a dataset of captions: what fits together, and what its arrays depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
#: Numbers that stand for no word, and words of the grammar of scenes (`words`, `scenes`).
SPECIAL_NUMBERS, GRAMMAR_WORDS = 4, 47
DTYPE = "uint16"


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
    """Return what decides the captions of pictures, or scenes with their captions and features."""
    source = settings["source"]
    return dict(source) if source["type"] == "simulated" else {"type": source["type"]}


def inputs(settings: Mapping[str, Any]) -> list[Path]:
    """Return the user's files, in the order of `PATHS`; none for a simulation.

    Raises
    ------
    InputError : a variable in a path is not set.
    """
    source = settings["source"]
    if source["type"] == "simulated":
        return []
    return [_path(source, key) for key in PATHS]


def extraction(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths of `PICTURES`, by name; none for a simulation.

    Raises
    ------
    InputError : a variable in a path is not set.
    """
    source = settings["source"]
    if source["type"] == "simulated":
        return {}
    return {key: str(_path(source, key)) for key in PICTURES}


def _path(source: Mapping[str, Any], key: str) -> Path:
    return Path(expanded_path(source[key], f"source.{key}"))


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
    """Return the captions that the source was read into, and the features of pictures."""
    features = {} if settings["source"]["type"] == "simulated" else {"features": "features"}
    return {name: folder / part for name, part in ({"source": "source"} | features).items()}


def size(settings: Mapping[str, Any]) -> Size:
    """Return what the settings tell about a split.

    The lists of Flickr8k tell how many pictures each side has, if they exist already. The number of
    words is at most that of the setting `vocabulary`, or that of the grammar of scenes. Without
    both only the captions tell it, and a model's size is unknown.
    """
    source = settings["source"]
    simulated = source["type"] == "simulated"
    captions = source["captions_per_picture"] if simulated else CAPTIONS
    shape = (captions, settings["words"])
    known = [settings["vocabulary"], GRAMMAR_WORDS if simulated else None]
    most = min((words for words in known if words), default=None)
    below = {} if most is None else {"below": SPECIAL_NUMBERS + most}
    inputs = (
        {
            "name": "features",
            "shape": (source["features"] if simulated else FC2,),
            "dtype": "float16",
        },
        {"name": "words", "shape": shape, "dtype": DTYPE, **below},
    )
    rows = source["pictures"] if simulated else _listed(source)
    return Size(
        rows,
        inputs,
        outputs=shape if below else None,
        targets={"name": "labels", "shape": shape, "dtype": DTYPE},
        untimed=None if simulated else _features_of(rows),
    )


def _listed(source: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the number of pictures in the list of each side, None if a list cannot be read."""
    try:
        lists = {side: read_text(_path(source, side)) for side in LISTS}
    except InputError:
        return None
    return {side: sum(map(bool, map(str.strip, text.split("\n")))) for side, text in lists.items()}


def _features_of(rows: Mapping[str, int] | None) -> str:
    pictures = f"{sum(rows.values())} pictures" if rows else "the pictures"
    return f"the features of {pictures}"
