"""Settings of a dataset, divided by the `role` of each key in `kind.yaml` of its kind.

The roles are `acquired`, `prepared`, `path`, `extracted` and `audit` (`escala.data`).
The workflow calls these functions at every start, so this module imports no heavy library.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from escala.core.errors import InputError
from escala.data import kind_of
from escala.data.paths import expand_path

Settings = Mapping[str, Any]
#: The sides of a split, in their order.
SIDES = ("train", "validation", "test")


class Size(NamedTuple):
    """The expected training rows of a split, and the numbers in the inputs of a row.

    Both limit the steps of a calibration. None means that a number is known only after preparation.
    """

    rows: float | None = None
    numbers: int | None = None


def derive(function: str, settings: Settings, *arguments: object) -> Any:
    """Return the result of a function of the kind's package, or else of this module."""
    # `settings` of a kind is its package; `has` tells whether the kind has such a module.
    call = getattr(kind_of(settings).settings, function, None) or globals()[function]
    return call(settings, *arguments)


def acquisition(settings: Settings) -> dict[str, Any]:
    """Return the settings that decide what is acquired, besides the user's files."""
    return {key: value for key, value, role in _keys(settings) if role == "acquired"}


def inputs(settings: Settings) -> list[Path]:
    """Return the user's files and folders that acquisition reads."""
    return [*paths_of(settings, "path").values()]


def extraction(settings: Settings) -> dict[str, Path]:
    """Return by name the paths from which a separate step computes features."""
    return paths_of(settings, "extracted")


def preparation(settings: Settings) -> dict[str, Any]:
    """Return the settings that the arrays depend on, and the type of the source."""
    source = {"provenance": settings["source"]["type"]} if "source" in settings else {}
    prepared = {key: value for key, value, role in _keys(settings) if role == "prepared"}
    split = split_of(settings)
    return source | prepared | ({"split": split} if split else {})


def preparation_inputs(settings: Settings, folder: Path) -> dict[str, Path]:
    """Return the paths that preparation reads, by name: in `folder`, or the user's paths."""
    made = {"source": kind_of(settings).has("source"), "features": bool(extraction(settings))}
    parts = {part: folder / part for part, is_made in made.items() if is_made}
    return parts or paths_of(settings, "path")


def size(settings: Settings) -> Size:
    """Return an unknown size: the default for a kind, known only after preparation."""
    return Size()


def photographs(settings: Settings) -> Path | None:
    """Return None: by default there are no photographs that figures could show with test rows."""
    return None


def paths_of(settings: Settings, role: str) -> dict[str, Path]:
    """Return the expanded paths of the keys with a role, by key."""
    source = settings.get("source", {})
    return {
        key: Path(expand_path(value, f"source.{key}" if key in source else key))
        for key, value, role_of_key in _keys(settings)
        if role_of_key == role
    }


def _keys(settings: Settings) -> Iterator[tuple[str, Any, str]]:
    """Yield key, value and role of all settings, inside `source` and outside."""
    declared = kind_of(settings).declared["settings"]["properties"]
    source = declared.get("source", {})
    for form in source.get("oneOf", ()):
        if form["properties"].get("type", {}).get("const") == settings["source"].get("type"):
            source = form
    for key, schema in source.get("properties", {}).items():
        if key in settings["source"]:
            yield key, settings["source"][key], schema.get("role", "acquired")
    for key, schema in declared.items():
        if key in settings and key not in ("source", "split"):
            yield key, settings[key], schema.get("role", "prepared")


def split_of(settings: Settings) -> dict[str, Any]:
    """Return the `split` of a dataset without its seeds."""
    return {key: value for key, value in settings["split"].items() if key != "seeds"}


def require_training_rows(split: Mapping[str, float], rows: str = "row") -> None:
    """Refuse `test_fraction` and `validation_fraction` that leave no row to train on.

    `rows` is the word for a row of this dataset.
    """
    fractions = [split["test_fraction"], split["validation_fraction"]]
    if sum(fractions) >= 1:
        reason = f"the test and validation sides leave no {rows} to train on"
        raise InputError("split", fractions, reason, "give fractions whose sum is below 1")


def training_rows(rows: int, split: Mapping[str, float]) -> float:
    """Return how many of `rows` are expected on the training side."""
    return rows * (1 - sum(split[f"{side}_fraction"] for side in ("validation", "test")))
