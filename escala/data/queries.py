"""A user's own data, item by item, as a model is given them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Query(NamedTuple):
    """One item to predict.

    Attributes
    ----------
    columns : what the table of predictions tells of it, by column: its name first. Where the file
        tells its class too, that is `class`, and the predictions are scored.
    inputs : an array for each input of the model, of shape (pieces, …); the predictions of the
        pieces are averaged.
    evidence : what its familiarity is measured on; None where the kind has no such measure.
    """

    columns: Mapping[str, Any]
    inputs: tuple[np.ndarray, ...]
    evidence: Any = None
