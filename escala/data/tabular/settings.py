"""The settings of a dataset of tables: what fits together, and what its arrays depend on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from escala.data.fractions import expected_rows, require_training_rows, split_of
from escala.data.paths import expanded_path
from escala.data.size import Size

#: Rows, features and classes of the samples of scikit-learn.
SAMPLES = {"breast_cancer": (569, 30, 2), "digits": (1797, 64, 10)}


def check(settings: Mapping[str, Any]) -> None:
    """Refuse fractions that leave no row to train on."""
    require_training_rows(settings["split"])


def acquisition(settings: Mapping[str, Any]) -> dict:
    """Return what decides the table besides the content of the user's file."""
    return {key: value for key, value in settings["source"].items() if key != "path"}


def inputs(settings: Mapping[str, Any]) -> list[Path]:
    """Return the user's file, if the table comes from one."""
    source = settings["source"]
    return [Path(expanded_path(source["path"], "source.path"))] if "path" in source else []


def preparation(settings: Mapping[str, Any]) -> dict:
    """Return the settings that the arrays depend on, and no others."""
    treated = {key: settings[key] for key in ("missing", "constant_features", "standardise")}
    return {"provenance": settings["source"]["type"], **treated, "split": split_of(settings)}


def prepared_from(settings: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Return the table that the source was read into."""
    return {"source": folder / "source"}


def size(settings: Mapping[str, Any]) -> Size:
    """Return what the settings tell about a split of a sample; nothing about a user's table.

    Constant features count, although `constant_features: drop` leaves them out of the arrays.
    """
    sample = SAMPLES.get(settings["source"].get("name"))
    if sample is None:
        return Size()
    rows, features, _ = sample
    inputs = ({"name": "features", "shape": (features,), "dtype": "float32"},)
    return Size(expected_rows(rows, settings["split"]), inputs)
