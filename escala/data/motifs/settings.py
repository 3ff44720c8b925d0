"""The settings of a dataset of motifs: what fits together, and what its arrays depend on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from escala.data.fractions import require_training_rows, split_of
from escala.data.paths import expanded_path
from escala.data.size import Size

#: Numbers of a row for each letter: one for each of A, C, G and T.
LETTERS = 4


def check(settings: Mapping[str, Any]) -> None:
    """Refuse fractions that leave no sequence to train on."""
    if settings["source"]["type"] == "fasta":
        require_training_rows(settings["split"], "sequence")


def preparation(settings: Mapping[str, Any]) -> dict:
    """Return the settings that the arrays depend on, and no others."""
    source = settings["source"]
    common = {"provenance": source["type"], "length": settings["length"]}
    if source["type"] == "fasta":
        return common | {"split": split_of(settings)}
    return common | {"rows": source["rows"]}


def prepared_from(settings: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Return the user's files `positive` and `negative`, by name; none of a simulation."""
    source = settings["source"]
    return {
        key: Path(expanded_path(source[key], f"source.{key}"))
        for key in ("positive", "negative")
        if key in source
    }


def size(settings: Mapping[str, Any]) -> Size:
    """Return what the settings tell about a split: the rows of a simulation, and their form."""
    inputs = ({"name": "sequence", "shape": (settings["length"], LETTERS), "dtype": "uint8"},)
    rows = settings["source"].get("rows")
    sides = rows and {side: count for side, count in rows.items() if count}
    return Size(sides, inputs)
