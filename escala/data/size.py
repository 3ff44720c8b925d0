"""Describe the size of a split before its arrays exist."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The targets of a classification, in the form of `Size.targets`.
LABELS = {"name": "labels", "shape": (), "dtype": "int64"}


@dataclass(frozen=True)
class Size:
    """Size of one split, from the settings of its dataset; None where only the data tell it.

    Attributes
    ----------
    rows : expected rows of each side, by name, for the sides that the split will have.
    inputs : the entry of each input in `dataset.json` (`escala.data.base`), without `file`; none
        of files that a program reads itself, for which no arrays are written.
    targets : the entry of the targets, without `file`.
    untimed : what has to be computed before the split, in words, if it takes long and its time is
        not known.
    """

    rows: Mapping[str, float] | None = None
    inputs: tuple[Mapping[str, Any], ...] | None = None
    targets: Mapping[str, Any] = field(default_factory=LABELS.copy)
    untimed: str | None = None

    @property
    def train_rows(self) -> float | None:
        return None if self.rows is None else self.rows["train"]

    @property
    def bytes(self) -> float | None:
        """The bytes of the arrays of all sides together."""
        if self.inputs == ():
            return 0
        if self.rows is None or self.inputs is None:
            return None
        return sum(self.rows.values()) * sum(map(_row_bytes, (*self.inputs, self.targets)))


def _row_bytes(entry: Mapping[str, Any]) -> int:
    """Return the bytes of one row of an array; the name of its dtype ends in bits, as `float16`."""
    bits = re.search(r"\d+$", entry["dtype"])
    return math.prod(entry["shape"]) * (int(bits[0]) // 8 if bits else 1)
