"""A user's own data as the inputs of a model, item by item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from escala.core.errors import InputError


class Query(NamedTuple):
    """One item to predict.

    `columns` are its cells in the table of predictions, by column; its name comes first. If the
    file gives the true class, this is the column `class`, and the predictions are scored. `inputs`
    has an array for each input of the model, of shape (pieces, …). The predictions of the pieces
    are averaged, unless the workload offers `columns`. From `evidence` its familiarity is computed;
    None if the kind has no such measure.
    """

    columns: Mapping[str, Any]
    inputs: tuple[np.ndarray, ...]
    evidence: Any = None


def invalid(key: str, wrong: str) -> InputError:
    """Return the error about a value of `model.json`, which may be of an unknown source."""
    remedy = "get the model's folder again, or train the model again"
    return InputError("model.json", key, f"is missing, or {wrong}", remedy)
