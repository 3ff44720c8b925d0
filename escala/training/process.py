"""What every process of a run does and tells, whatever trains in it; times, scores and digests."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any, TypedDict

from escala.core import load, proc
from escala.strategies.base import Place

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger("escala")


class Told(TypedDict):
    """What a process of a run tells of itself in `rank{r}.json`; None is what it does not know."""

    #: One dictionary for each epoch that counts; None of a process that only serves others.
    epochs: list[dict[str, Any]] | None
    #: Seconds of each of `PARTS`, and of the first epoch if that does not count.
    seconds: dict[str, float | None]
    first_epoch: float | None
    #: How the steps of a program are known (`escala.programs.marks`), and its time in all.
    known_by: str | None
    whole_seconds: float | None
    #: The number of ranks, the threads and GPUs of this one, and the part of a batch of each rank.
    ranks: int
    threads: dict[str, int]
    gpus: list[str] | None
    fractions: list[float] | None
    parameters: int | None
    optimizer: str | None
    stopped_early: bool | None
    best_epoch: int | None
    resumed_after: list[int] | None
    dense_exchange: dict[str, str] | None
    #: Digests of the weights of each rank here, and the test rows that were predicted, [from, to).
    weights_sha256: list[str] | None
    evaluated: list[int] | None
    #: Scores that a program reports of itself, notes on it, what its processes did, and the files
    #: that they read.
    scores: dict[str, float] | None
    notes: list[str] | None
    ran: dict[str, Any] | None
    read: list[str] | None
    #: What was used during the epochs (`escala.core.proc`), and what this node did meanwhile
    #: (`escala.core.load`), which one process of each node tells.
    usage: dict[str, float | None] | None
    load: dict[str, float | None] | None
    #: Where it ran, the boot of the machine and so its clock, and the job step.
    host: str
    boot: str
    step: str | None
    cores: list[int]


#: The parts of a run's time that a process may tell of.
PARTS = (
    "startup", "loading", "build", "first_step", "first_prediction", "broadcast", "checkpoint",
    "averaging", "evaluation", "save",
)  # fmt: skip


def load_reader(plan: dict, place: Place) -> load.Load:
    """Return the reader of the load of this node, which reads in the first process of a node.

    The run's own are the ranks here, what they start, what started them, and on the first node what
    supervises the run. A program starts processes while it trains.
    """
    if place.local:
        return load.Load(None)
    parent = os.getppid()
    roots = [parent if parent > 1 else os.getpid()]
    supervisor = plan["supervisor"]
    if place.node == 0 and proc.is_running(supervisor["pid"], supervisor["started"]):
        roots.append(supervisor["pid"])
    return load.Load(roots, grows="start" in plan)


def startup_seconds(rank: int, ranks: int) -> float:
    """Return the time since the start of this process, and log that it is ready."""
    seconds = proc.age()
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
