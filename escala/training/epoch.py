"""One pass of a process over its part of the training rows."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np

from escala.core import proc
from escala.core.errors import Diverged
from escala.core.load import Load
from escala.data.base import Arrays
from escala.engines.base import Engine, MadeStep
from escala.training.process import STEP_COLUMNS, VALIDATION, not_finite
from escala.training.shards import Shards, evaluation_rows, gather_steps, row_moments
from escala.workloads.models import row_blocks

log = logging.getLogger("escala")

#: The least time between two lines of progress.
PROGRESS_SECONDS = 2.0
#: Positions of the sums of losses and of hits in `STEP_COLUMNS`.
_LOSS, _HITS = STEP_COLUMNS.index("loss_sum"), STEP_COLUMNS.index("correct")


def train_epoch(
    number: int,
    engine: Engine,
    data: Arrays,
    plan: Mapping[str, Any],
    fractions: np.ndarray,
    writer: Any,
    load: Load,
) -> tuple[dict, list[int]]:
    """Make one pass over the shards of this process, and write the steps by `writer`, a CSV writer.

    Return the record of the epoch, and the number of rows of each rank whose steps this process
    makes. `train_seconds` begins before the first batch is gathered and ends after the last step.
    `load` measures the load of the machine during this time.
    """
    shards = Shards.of_plan(plan, fractions)
    steps = shards.steps(plan["max_steps"])
    made_steps = _MadeSteps(number, steps, engine, plan)
    gather = partial(gather_steps, data, plan["weighting"])
    load.begin()
    # The ranks begin together. Otherwise a late rank would add to the training time of other ranks.
    engine.group.meet()
    began, used_before = time.monotonic(), proc.usage_of_self()
    made_steps.start = time.perf_counter()
    for step in engine.make_steps(islice(shards.epoch_batches(number), steps), gather):
        made_steps.add(step)
    train_seconds = time.perf_counter() - made_steps.start
    used = proc.usage_of_self().since(used_before)
    load.end()
    epoch = {
        "epoch": number,
        "steps": steps,
        "began": began,
        "train_seconds": train_seconds,
        "usage": used,
    }
    unknown = dict.fromkeys(VALIDATION) | {"scores": {}}
    return epoch | made_steps.write(writer) | unknown, made_steps.rows.tolist()


class _MadeSteps:
    """The steps of an epoch that this process has made: their times, sums and rows.

    `start` is the start of the epoch by `time.perf_counter`. `rows` is the number of rows taken so
    far by each rank whose steps this process makes.
    """

    def __init__(self, epoch: int, steps: int, engine: Engine, plan: Mapping[str, Any]):
        self._epoch, self._steps, self._engine, self._plan = epoch, steps, engine, plan
        self._records: list[tuple] = []
        self._taken: list[np.ndarray] = []
        self.start = self._logged = time.perf_counter()
        self.rows = np.int64(0)

    def add(self, made: MadeStep) -> None:
        began, gathered, returned = made.moments
        number, rows = len(self._records) + 1, np.array([*map(len, made.rows)])
        seconds = gathered - began, returned - gathered
        self._records.append((self._epoch, number, rows.sum(), *seconds, made.loss, made.hits))
        if recorder := self._engine.recorder:
            recorder.note(self._epoch, number, *made.moments)
        if returned - self._logged > PROGRESS_SECONDS:
            self._logged = returned
            # If ranks do not wait for each other, a loss is a number only after all scheduled
            # steps.
            if isinstance(made.loss, float):
                self._require_finite()
            log.info(
                "epoch %d/%d: step %d/%d, %.0f samples/s",
                self._epoch,
                self._plan["training"]["epochs"],
                number,
                self._steps,
                number * self._plan["global_batch"] / (returned - self.start),
            )
        self._taken += made.rows
        self.rows = self.rows + rows

    def write(self, writer: Any) -> dict:
        """Write the steps as `STEP_COLUMNS`, and return rows, loss, accuracy and row moments.

        Rows and moments belong to this process. Loss and accuracy are means over all rows of the
        epoch. A loss that is not finite is `Diverged`.
        """
        self._records = [(*r[:_LOSS], float(r[_LOSS]), float(r[_HITS])) for r in self._records]
        self._require_finite()
        writer.writerows(self._records)
        taken = np.concatenate(self._taken)
        losses, hits = (sum(r[column] for r in self._records) for column in (_LOSS, _HITS))
        losses, hits, rows = self._engine.group.total(
            np.array([losses, hits, len(taken)], np.float64)
        )
        if not math.isfinite(losses):
            raise Diverged(f"the loss is not finite in epoch {self._epoch}")
        return {
            "rows": len(taken),
            "loss": losses / rows,
            "accuracy": hits / rows,
            "row_moments": row_moments(taken),
        }

    def _require_finite(self) -> None:
        if math.isfinite(float(self._records[-1][_LOSS])):
            return
        epoch, step, *_ = next(r for r in self._records if not math.isfinite(float(r[_LOSS])))
        raise Diverged(f"the loss is not finite in epoch {epoch}, step {step}")


def predict_rows(
    engine: Engine, data: Arrays, side: str, rows: slice
) -> tuple[np.ndarray, dict[str, float]]:
    """Return predictions for some rows of a side, and the sums of losses and scores over them."""
    blocks = list(row_blocks(rows, engine.rows_at_once))
    # Without rows, one row is predicted, to learn the shape and the names of the results.
    results = [engine.evaluate(*data.gather(side, block)) for block in blocks or [slice(0, 1)]]
    predictions, scores = zip(*results, strict=True)
    if not blocks:
        return predictions[0][:0], dict.fromkeys(scores[0], 0.0)
    sums = {name: sum((block[name] for block in scores), 0.0) for name in scores[0]}
    return np.concatenate(predictions), sums


def validate(
    engine: Engine,
    data: Arrays,
    side: str,
    scores: ModuleType | None = None,
    divided: bool = True,
) -> dict:
    """Return a side's losses and scores over all ranks, for an epoch's record.

    `scores` is the workload's module `scores`, if there is one. With `divided` the processes divide
    the rows; otherwise the first process evaluates all rows.

    A loss that is not finite is `Diverged`. A ValueError is raised if a score of the workload is
    not finite, if its counts do not have the shape (rows, n), or if two scores have one name.
    """
    start = time.perf_counter()
    rows = evaluation_rows(data.rows(side), engine.place.process, engine.place.processes, divided)
    predictions, sums = predict_rows(engine, data, side, rows)
    counted = _count(scores, data.gather(side, rows)[1], predictions)
    totals = engine.group.total(np.array([*sums.values(), *counted], np.float64))
    means = dict(zip(sums, (totals[: len(sums)] / data.rows(side)).tolist(), strict=True))
    loss, accuracy = means.pop("loss"), means.pop("correct")
    if not math.isfinite(loss):
        raise Diverged(f"the {side} loss is {loss}")
    if problem := not_finite(means):
        raise ValueError(f"{problem}: `row_scores` must give a finite number for each {side} row")
    from_sums = scores.scores_of(totals[len(sums) :]) if counted.size else {}
    if problem := not_finite(from_sums):
        raise ValueError(f"{problem}: `scores_of` must give finite numbers, or leave a score out")
    if twice := means.keys() & from_sums.keys():
        raise ValueError(f"score {min(twice)} is given by row_scores and by scores_of")
    return {
        "validation_accuracy": accuracy,
        "validation_loss": loss,
        "scores": means | from_sums,
        "validation_seconds": time.perf_counter() - start,
    }


def _count(scores: ModuleType | None, targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return the sums over rows of what a workload counts, float64 (n,); (0,) if it counts nothing.

    Counts with another number of rows are a ValueError.
    """
    if not (hasattr(scores, "counts") and hasattr(scores, "scores_of")):
        return np.empty(0)
    counts = np.asarray(scores.counts(targets, predictions), np.float64)
    if counts.ndim != 2 or len(counts) != len(targets) or not counts.shape[1]:
        raise ValueError(
            f"`counts` gives the shape {counts.shape} for {len(targets)} rows in place of (rows, n)"
        )
    return counts.sum(axis=0)
