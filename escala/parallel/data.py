"""Helpers of every rank: map the arrays, time named parts, digest weights."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: Of `rank{r}.steps.csv`.
STEP_COLUMNS = ("epoch", "step", "rows", "input_seconds", "step_seconds", "loss_sum", "correct")


@dataclass(frozen=True)
class Data:
    """The arrays of one split: codes uint8 (rows, length), labels int64 (rows,)."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray

    @classmethod
    def load(cls, folder: str | Path) -> Data:
        """Map the arrays of a split's folder into memory, read-only."""
        return cls(
            *(
                np.load(Path(folder) / f"{name}.npy", mmap_mode="r", allow_pickle=False)
                for name in ("train", "train_labels", "test", "test_labels")
            )
        )

    def touch(self) -> None:
        """Read every page once: what training reads later is in memory, shared by the ranks."""
        for array in (self.train, self.train_labels, self.test, self.test_labels):
            array.max(initial=0)


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
    """Return the SHA-256 over the bytes of all weights, in their order."""
    found = hashlib.sha256()
    for weight in weights:
        found.update(np.ascontiguousarray(weight).tobytes())
    return found.hexdigest()
