"""What every process of a run does, however its workload is trained; times, scores and digests."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any

from escala.core import clock, load
from escala.strategies.base import Place

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger("escala")


def load_reader(plan: dict, place: Place, grows: bool = False) -> load.Load:
    """Return the reader of the load of this node, which reads in the first process of a node.

    The run's own are the ranks here, what they start, what started them, and on the first node what
    supervises the run. `grows` is explained at `escala.core.load.Load`.
    """
    if place.local:
        return load.Load(None)
    parent = os.getppid()
    roots = [parent if parent > 1 else os.getpid()]
    supervisor = plan["supervisor"]
    if place.node == 0 and clock.runs(supervisor["pid"], supervisor["started"]):
        roots.append(supervisor["pid"])
    return load.Load(roots, grows)


def startup_seconds(rank: int, ranks: int) -> float:
    """Return the time since the start of this process, and log that it is ready."""
    seconds = clock.age()
    cores = sorted(os.sched_getaffinity(0))
    log.info("rank %d of %d on cores %s, ready after %.1f s", rank, ranks, cores, seconds)
    return seconds


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
