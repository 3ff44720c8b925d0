"""The fractions by which a dataset is divided: their check, and the rows that they give each side.

The workflow calls this at every start, so this module imports no heavy library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from escala.core.errors import InputError


def split_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `split` of a dataset without its seeds: what the arrays depend on."""
    return {key: value for key, value in settings["split"].items() if key != "seeds"}


def require_training_rows(split: Mapping[str, float], rows: str = "row") -> None:
    """Refuse `test_fraction` and `validation_fraction` that leave nothing to train on.

    `rows` is the word for a row of this dataset.
    """
    fractions = [split["test_fraction"], split["validation_fraction"]]
    if sum(fractions) >= 1:
        reason = f"the test and validation sides leave no {rows} to train on"
        raise InputError("split", fractions, reason, "give fractions whose sum is below 1")


def expected_rows(rows: int, split: Mapping[str, float]) -> dict[str, float]:
    """Return the expected number of `rows` of each side, without sides whose fraction is 0."""
    fractions = {side: split[f"{side}_fraction"] for side in ("validation", "test")}
    sides = {"train": 1 - sum(fractions.values())} | fractions
    return {side: rows * fraction for side, fraction in sides.items() if fraction}
