"""Helpers of every rank: time named parts, digest weights."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

#: Columns of `rank{r}.steps.csv`.
STEP_COLUMNS = ("epoch", "step", "rows", "input_seconds", "step_seconds", "loss_sum", "correct")


class Clock:
    """Seconds spent under each name; a name used twice adds up."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def digest(weights: Iterable[np.ndarray]) -> str:
    """Return the SHA-256 of the bytes of all weights, in their order."""
    found = hashlib.sha256()
    for weight in weights:
        found.update(np.ascontiguousarray(weight).tobytes())
    return found.hexdigest()
