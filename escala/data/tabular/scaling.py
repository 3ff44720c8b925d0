"""From the numbers of a table to what a model reads, learnt on training rows only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sklearn.preprocessing import StandardScaler

from escala.core.errors import InputError

#: Rows that are worked on at a time.
BLOCK_ROWS = 65_536


@dataclass(frozen=True)
class Scaling:
    """The scaling of each feature.

    A missing value becomes the feature's mean. With `standardise` the mean is then subtracted, and
    the rest divided by `scale`; both are float64 (features,), over the training rows. Only the
    features with the numbers `kept`, int64, are given to a model.
    """

    mean: np.ndarray
    scale: np.ndarray
    kept: np.ndarray
    standardise: bool

    @classmethod
    def described(cls, given: Mapping[str, Any]) -> Scaling:
        """Return the scaling that `description` described."""
        mean, scale = (np.array(given[key], np.float64) for key in ("mean", "scale"))
        return cls(mean, scale, np.array(given["kept"], np.int64), given["standardise"])

    def description(self) -> dict:
        """Return it as JSON knows it, without a loss."""
        arrays = {key: getattr(self, key).tolist() for key in ("mean", "scale", "kept")}
        return arrays | {"standardise": self.standardise}

    def apply(self, features: np.ndarray) -> np.ndarray:
        """Return what a model reads of some rows, float32 (rows, features kept)."""
        filled = np.where(np.isnan(features), self.mean, features)
        if self.standardise:
            filled = (filled - self.mean) / self.scale
        return filled[:, self.kept].astype(np.float32)


def learn(
    features: np.ndarray,
    rows: np.ndarray,
    names: list[str],
    constant: Literal["refuse", "drop", "keep"],
    standardise: bool,
) -> Scaling:
    """Return the scaling of a table by its training rows, read some at a time.

    `features` are float64 (all rows, features), NaN where a value is missing; `rows` are numbers of
    the training rows. Features without a value in them are refused, and those with one value in all
    of them treated as `constant` says.
    """
    scaler = StandardScaler()
    lowest, highest = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    for block in row_blocks(features, rows):
        scaler.partial_fit(block)
        lowest = np.fmin(lowest, np.fmin.reduce(block))
        highest = np.fmax(highest, np.fmax.reduce(block))
    if (lowest > highest).any():
        name = names[int((lowest > highest).argmax())]
        raise InputError("features", name, "has no value in the training rows", "remove the column")
    varies = lowest < highest
    if not varies.all() and constant == "refuse":
        name, reason = names[int((~varies).argmax())], "has the same value in all training rows"
        remedy = "remove the column, or set constant_features: drop or keep"
        raise InputError("constant_features", name, reason, remedy)
    kept = np.flatnonzero(varies) if constant == "drop" else np.arange(len(names))
    if not len(kept):
        reason = "leaves no feature: all are constant"
        raise InputError("constant_features", "drop", reason, "give features that vary")
    return Scaling(scaler.mean_, np.where(varies, scaler.scale_, 1.0), kept, standardise)


def row_blocks(features: np.ndarray, rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield some rows of a table, `BLOCK_ROWS` at a time."""
    for start in range(0, len(rows), BLOCK_ROWS):
        yield np.asarray(features[rows[start : start + BLOCK_ROWS]])
