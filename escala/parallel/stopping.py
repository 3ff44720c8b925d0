"""When training ends before its last epoch."""

from __future__ import annotations

import math


class EarlyStopping:
    """Stop when the loss has not fallen by more than `min_delta` for `patience` epochs.

    All ranks see the same global loss, so all of them decide alike.
    """

    def __init__(self, settings: dict | None):
        self.patience = settings["patience"] if settings else math.inf
        self.min_delta = settings["min_delta"] if settings else 0.0
        self._best, self._waited = math.inf, 0

    def stops(self, loss: float) -> bool:
        if loss < self._best - self.min_delta:
            self._best, self._waited = loss, 0
        else:
            self._waited += 1
        return self._waited >= self.patience
