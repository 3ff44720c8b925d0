"""One pass of a process over its part of the training rows."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from escala.core import usage
from escala.core.errors import Diverged
from escala.core.load import Load
from escala.data.base import Arrays
from escala.engines.base import Engine
from escala.strategies import STRATEGIES
from escala.training.data import VALIDATION
from escala.training.shards import RankRows, Shards, calls, divisors, gathered, row_moments

log = logging.getLogger("escala")

PROGRESS_SECONDS = 2.0


def train_epoch(
    number: int,
    engine: Engine,
    data: Arrays,
    plan: Mapping[str, Any],
    fractions: np.ndarray,
    writer: Any,
    load: Load,
) -> tuple[dict, list[int]]:
    """Make one pass over the shards of this process; the steps go to `writer`, of a CSV file.

    Return the epoch's totals over all ranks, and the number of rows of each rank that this process
    drives. `train_seconds` lasts from before the first batch is gathered until after the last step.
    The times of a call are divided evenly among its steps. `load` reads what the machine does
    meanwhile.
    """
    shards = Shards.planned(plan, fractions)
    # A rank that trains alone takes the mean over its own rows.
    exchanges = STRATEGIES[plan["strategy"]].exchanges(plan["knobs"])
    weighting = plan["knobs"]["weighting"] if exchanges else "ranks"
    steps = shards.steps(plan["max_steps"])
    made = _Made(number, steps, engine, plan)
    load.begin()
    # The ranks begin together, so that no rank's earlier work counts as training time of others.
    engine.group.meet()
    began, used = time.monotonic(), usage.of_self()
    made.start = before = time.perf_counter()
    for call in calls(islice(shards.epoch_batches(number), steps), engine.steps_per_call):
        divided_by = divisors(call[0], weighting)
        arguments = gathered(data, call, engine.group.driven, divided_by)
        ready = time.perf_counter()
        sums = engine.step(arguments, len(call))
        made.add(call, sums, (before, ready, time.perf_counter()))
        before = time.perf_counter()
    engine.group.join()
    train_seconds = time.perf_counter() - made.start
    used = usage.of_self().since(used)
    load.end()
    epoch = {
        "epoch": number,
        "steps": steps,
        "began": began,
        "train_seconds": train_seconds,
        "usage": used,
    }
    unknown = dict.fromkeys(VALIDATION) | {"scores": {}}
    return epoch | made.totals(writer) | unknown, made.rows.tolist()


class _Made:
    """The steps of an epoch that were made: their times and sums, and the rows that they took.

    `start` is when the epoch began, of `time.perf_counter`; `taken` has the row numbers of each
    step and rank of this process, and `rows` how many these are, by rank.
    """

    def __init__(self, epoch: int, steps: int, engine: Engine, plan: Mapping[str, Any]):
        self._epoch, self._steps, self._engine, self._plan = epoch, steps, engine, plan
        self._records: list[tuple] = []
        self.start = self._told = time.perf_counter()
        self.taken: list[np.ndarray] = []
        self.rows = np.zeros(len(engine.group.driven), np.int64)

    def add(
        self, call: list[RankRows], sums: tuple[Sequence, Sequence], moments: tuple[float, ...]
    ) -> None:
        """Add the steps of a call; `moments`: gathering began, ended, the steps were made."""
        began, ready, after = moments
        mine = [step[rank] for step in call for rank in self._engine.group.driven]
        seconds = (ready - began) / len(call), (after - ready) / len(call)
        rows = sum(map(len, mine)) // len(call)
        for loss, hits in zip(*sums, strict=True):
            number = len(self._records) + 1
            self._records.append((self._epoch, number, rows, *seconds, loss, hits))
        if recorder := self._engine.recorder:
            recorder.note(self._epoch, len(self._records), *moments)
        if after - self._told > PROGRESS_SECONDS:
            self._told = after
            self._tell(after)
        self.taken += mine
        self.rows += [sum(len(step[rank]) for step in call) for rank in self._engine.group.driven]

    def _tell(self, now: float) -> None:
        # Where ranks do not wait, losses are there only once all scheduled steps are.
        if self._engine.waits:
            self._require_finite()
        number = len(self._records)
        log.info(
            "epoch %d/%d: step %d/%d, %.0f samples/s",
            self._epoch,
            self._plan["training"]["epochs"],
            number,
            self._steps,
            number * self._plan["global_batch"] / (now - self.start),
        )

    def totals(self, writer: Any) -> dict:
        """Write the steps as `STEP_COLUMNS`; return totals of all ranks, or raise `Diverged`."""
        self._records = [(*each[:5], float(each[5]), float(each[6])) for each in self._records]
        self._require_finite()
        writer.writerows(self._records)
        taken = np.concatenate(self.taken)
        losses, right = (sum(record[column] for record in self._records) for column in (5, 6))
        losses, right, rows = self._engine.group.total(
            np.array([losses, right, len(taken)], np.float64)
        )
        if not math.isfinite(losses):
            raise Diverged(f"the loss is not finite in epoch {self._epoch}")
        return {
            "rows": int(rows),
            "loss": losses / rows,
            "accuracy": right / rows,
            "row_moments": row_moments(taken),
        }

    def _require_finite(self) -> None:
        if math.isfinite(float(self._records[-1][5])):
            return
        epoch, step, *_ = next(r for r in self._records if not math.isfinite(float(r[5])))
        raise Diverged(f"the loss is not finite in epoch {epoch}, step {step}")
