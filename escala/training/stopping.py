"""Early stopping: the epoch after which training ends, and the weights that it keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

#: The field of an epoch for each value of `monitor`.
MONITORED = {"training": "loss", "validation": "validation_loss"}

Weights = list[np.ndarray]


class EarlyStopping:
    """Stop when a loss has not fallen by more than `min_delta` for `patience` epochs.

    The loss is the total over all ranks, so all ranks decide the same. The `settings` are
    `monitor`, `patience`, `min_delta` and `restore_best`; with None training never stops early.
    `best_epoch` is the last epoch in which the loss fell by more than `min_delta`, 0 before the
    first. `best_weights` are the weights after it if `restore_best` is set, otherwise None.
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
        """Record the number and the losses of an epoch; return whether training ends after it.

        `weights` returns the weights after the epoch.
        """
        loss = epoch[self._monitored]
        if loss < self._best - self._min_delta:
            self._best, self._waited, self.best_epoch = loss, 0, epoch["epoch"]
            self.best_weights = weights() if self._restores else None
        else:
            self._waited += 1
        return self._waited >= self.patience

    def resume(self, epochs: Iterable[Mapping[str, Any]], best: Callable[[], Weights]) -> None:
        """Take note of the epochs before the checkpoint from which a run goes on.

        `best` returns the weights after the best of them; it is called if they are to be restored.
        """
        for epoch in epochs:
            self.see(epoch, list)
        if self.best_weights is not None:
            self.best_weights = best()
