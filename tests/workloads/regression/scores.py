"""The root of the mean squared error."""

from __future__ import annotations

import numpy as np


def score(targets: np.ndarray, predictions: np.ndarray, description: dict) -> dict[str, float]:
    return {"rmse": float(np.sqrt(np.mean((targets - predictions) ** 2)))}
