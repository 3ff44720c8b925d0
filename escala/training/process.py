"""The input and output of a process of a run: its plan, its measurements, its times and digests."""

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


class Plan(TypedDict, total=False):
    """The plan of a run: keys of `escala.record.plan.make_plan`, and keys that a start adds."""

    strategy: str
    workload: str
    #: The engine that makes the steps; None for a fit or a program.
    engine: str | None
    #: The settings of the workload, and all knobs of the run.
    training: dict[str, Any]
    knobs: dict[str, Any]
    ranks: int
    #: The folder of the split.
    data: str
    #: The number of rows to train on, and of training rows in the split. Weak scaling trains on a
    #: part of the split.
    train_rows: int
    split_rows: int
    #: The training rows of each class before oversampling.
    train_counts: list[int] | None
    #: The side of the split that is evaluated after each epoch, or None.
    validated_on: str | None
    epochs: int
    #: Rows of a step, all ranks together: as in the settings; and limited to the training rows.
    global_batch: int
    step_rows: int | None
    learning_rate: float | None
    #: Whether the loss of a step is the mean over its `rows`, or the mean of the means of its
    #: `ranks`.
    weighting: str
    #: The seed of the initial weights and of the shuffles; None for a fit.
    seed: int | None
    #: Steps after which an epoch ends early; None for whole epochs.
    max_steps: int | None
    #: The probe that instruments the run, and its settings; None for a timing run.
    instrument: str | None
    probe_settings: dict[str, Any] | None
    #: Only for a program: the program's description, the paths of its data, and the network
    #: interface.
    start: dict[str, Any]
    #: The epoch after which the run resumes (0 for a new run), and the digest in its checkpoints.
    resume_after: int
    digest: str
    #: Node, host, cores and ports of each process (`escala.runtime.layout`).
    places: list[dict[str, Any]]
    #: The process that started the run.
    supervisor: dict[str, Any]


class Measurements(TypedDict):
    """The content of `rank{r}.json`; None for a value that the process does not know."""

    #: One dictionary for each epoch that counts; None for a process that only serves other
    #: processes.
    epochs: list[dict[str, Any]] | None
    #: Seconds of each of `PARTS`; seconds of the first epoch, if this epoch is not in `epochs`.
    seconds: dict[str, float | None]
    first_epoch: float | None
    #: How the steps of a program are known (`escala.programs.marks`); the steps of a whole epoch,
    #: if only some steps are timed; the program's whole time; and the whole training's, projected.
    known_by: str | None
    epoch_steps: int | None
    whole_seconds: float | None
    projected: dict[str, Any] | None
    #: What a mean step takes and uses in each process of a program (`escala.programs.seen`).
    mean_steps: list[dict[str, float | None]] | None
    #: The number of all ranks; threads and GPUs of this process; and each rank's part of a batch.
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
    #: Digests of the weights of each rank of this process. The range of test rows that the process
    #: has predicted: the first row, and the row after the last.
    weights_sha256: list[str] | None
    evaluated: list[int] | None
    #: Of a program: the scores that it reports, notes on it, the work of its processes, and the
    #: files that its processes read.
    scores: dict[str, float] | None
    notes: list[str] | None
    ran: dict[str, Any] | None
    read: list[str] | None
    #: Resources that the process used during the epochs (`escala.core.proc`). The load of its node
    #: in this time (`escala.core.load`), which only the first process of each node measures.
    usage: dict[str, float | None] | None
    load: dict[str, float | None] | None
    #: Where it ran: host, boot of the machine (it identifies the clock), job step, and cores.
    host: str
    boot: str
    step: str | None
    cores: list[int]


#: The parts of a run's time that a process may measure.
PARTS = (
    "startup", "loading", "build", "first_step", "first_prediction", "broadcast", "checkpoint",
    "averaging", "evaluation", "save",
)  # fmt: skip


def load_reader(plan: dict, place: Place) -> load.Load:
    """Return the reader of the load of this node; it reads only in the first process of a node.

    The run itself consists of the ranks of this node, with their parents and children, and on the
    first node the supervisor. A program may start children at any time, so the reader repeatedly
    looks for children.
    """
    if place.local:
        return load.Load(None)
    parent = os.getppid()
    # A process whose parent has ended gets process 1 as its parent.
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
#: Keys of an epoch's record about the validation; None without validation.
VALIDATION = ("validation_accuracy", "validation_loss", "validation_seconds")


class Clock:
    """Seconds spent under each name; times under an equal name add up."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def not_finite(scores: Mapping[str, Any]) -> str | None:
    """Return a text about a score of a workload that is infinite or not a number, or None."""
    for name, value in scores.items():
        if isinstance(value, Real) and not math.isfinite(value):
            return f"score {name} is {value}"
    return None


def digest(weights: Iterable[np.ndarray]) -> str:
    """Return the SHA-256, in hexadecimal, of all weights in order; arrays in C order."""
    sha = hashlib.sha256()
    for weight in weights:
        sha.update(weight.tobytes())
    return sha.hexdigest()
