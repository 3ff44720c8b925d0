"""Helpers of every rank: time named parts, check scores, digest weights."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

#: Columns of `rank{r}.steps.csv`.
STEP_COLUMNS = ("epoch", "step", "rows", "input_seconds", "step_seconds", "loss_sum", "correct")
#: What an epoch's record tells of the validation, None where there is none.
VALIDATION = ("validation_accuracy", "validation_loss", "validation_seconds")


class Clock:
    """Seconds spent under each name; a name used twice adds up."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def not_finite(scores: Mapping[str, Any]) -> str | None:
    """Return which of the scores of a workload is infinite or not a number, or None."""
    for name, value in scores.items():
        if isinstance(value, Real) and not math.isfinite(value):
            return f"score {name} is {value}"
    return None


def digest(weights: Iterable[np.ndarray]) -> str:
    """Return the SHA-256 of the bytes of all weights, in their order, each in that of C."""
    found = hashlib.sha256()
    for weight in weights:
        found.update(weight.tobytes())
    return found.hexdigest()
