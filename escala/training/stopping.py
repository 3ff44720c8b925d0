"""Early stopping: the epoch after which training ends, and the weights that it keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

#: The field of an epoch for each value of `monitor`.
MONITORED = {"training": "loss", "validation": "validation_loss"}

Weights = list[np.ndarray]


class EarlyStopping:
    """Stop when a loss has not fallen by more than `min_delta` for `patience` epochs.

    The loss is the total over all ranks, so all ranks decide the same.

    Parameters
    ----------
    settings : `monitor`, `patience`, `min_delta` and `restore_best`; with None training never stops
        early.

    Attributes
    ----------
    best_epoch : the last epoch in which the loss fell by more than `min_delta`, 0 before the first.
    best_weights : the weights after this epoch if `restore_best` is set, otherwise None.
    """

    def __init__(self, settings: Mapping[str, Any] | None):
        self.patience = settings["patience"] if settings else math.inf
        self._monitored = MONITORED[settings["monitor"]] if settings else "loss"
        self._min_delta = settings["min_delta"] if settings else 0.0
        self._restores = settings["restore_best"] if settings else False
        self._best, self._waited = math.inf, 0
        self.best_epoch = 0
        self.best_weights: Weights | None = None

    def see(self, epoch: Mapping[str, Any], weights: Callable[[], Weights]) -> bool:
        """Record an epoch's losses, and return whether training ends after it.

        Parameters
        ----------
        epoch : the number of the epoch as `epoch`, and its losses.
        weights : function that returns the weights after the epoch.
        """
        loss = epoch[self._monitored]
        if loss < self._best - self._min_delta:
            self._best, self._waited, self.best_epoch = loss, 0, epoch["epoch"]
            self.best_weights = weights() if self._restores else None
        else:
            self._waited += 1
        return self._waited >= self.patience
