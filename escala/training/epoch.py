"""One pass of a process over its share of the training rows."""

from __future__ import annotations

import logging
import math
import time
from itertools import islice
from typing import Any

import numpy as np

from escala.core.errors import Diverged
from escala.core.load import Load
from escala.data.base import Arrays
from escala.probes import Recorder
from escala.strategies import Strategy
from escala.training.calls import Steps, calls, gathered
from escala.training.shards import Shards, row_moments
from escala.training.step import divisors

log = logging.getLogger("escala")

PROGRESS_SECONDS = 2.0


def train_epoch(
    number: int,
    make: Steps,
    data: Arrays,
    request: dict,
    strategy: Strategy,
    shares: np.ndarray,
    writer: Any,
    recorder: Recorder | None,
    load: Load,
) -> tuple[dict, list[int]]:
    """Make one pass over the shards of this process.

    Parameters
    ----------
    make : the compiled steps by their number in a call. With a recorder, calls have one step.
    load : reads what the machine does meanwhile.

    Returns
    -------
    The epoch's totals over all ranks, and the number of rows of each rank that this process drives.
    `train_seconds` lasts from before the first batch is gathered until after the last step. The
    times of a call are divided evenly among its steps.
    """
    rows_in_epoch, batch, ranks = data.rows("train"), request["global_batch"], strategy.driven_ranks
    shards = Shards(
        request["shuffle_seed"], rows_in_epoch, batch, shares, request["knobs"]["shard"]
    )
    steps = shards.steps(request["max_steps"])
    records, taken, of_ranks = [], [], np.zeros(len(ranks), np.int64)
    load.begin()
    # The ranks begin together, so that no rank's earlier work counts as training time of others.
    strategy.total(np.zeros(1))
    began = time.monotonic()
    said = start = before = time.perf_counter()
    for call in calls(islice(shards.of_epoch(number), steps), max(make)):
        mine = [of_rank[rank] for of_rank in call for rank in ranks]
        of_process = gathered(data, call, ranks, divisors(call[0], request["knobs"]["weighting"]))
        ready = time.perf_counter()
        sums = make[len(call)](of_process)
        after = time.perf_counter()
        of_step = ((ready - before) / len(call), (after - ready) / len(call))
        rows = sum(map(len, mine)) // len(call)
        for loss_sum, correct in zip(sums[: len(call)], sums[len(call) :], strict=True):
            records.append((number, len(records) + 1, rows, *of_step, loss_sum, correct))
        index = len(records)
        if recorder:
            recorder.note(number, index, before, ready, after)
        if after - said > PROGRESS_SECONDS:
            said = after
            # The losses of an asynchronous strategy are there only once all scheduled steps are.
            if not strategy.asynchronous:
                _require_finite(records)
            log.info(
                "epoch %d/%d: step %d/%d, %.0f samples/s",
                number,
                request["training"]["epochs"],
                index,
                steps,
                index * batch / (after - start),
            )
        taken += mine
        of_ranks += [sum(len(of_rank[rank]) for of_rank in call) for rank in ranks]
        before = time.perf_counter()
    strategy.join()
    train_seconds = time.perf_counter() - start
    load.end()
    records = [(*record[:5], float(record[5]), float(record[6])) for record in records]
    _require_finite(records)
    writer.writerows(records)
    losses, right = sum(r[5] for r in records), sum(r[6] for r in records)
    trained = sum(map(len, taken))
    losses, right, rows = strategy.total(np.array([losses, right, trained], np.float64))
    if not math.isfinite(losses):
        raise Diverged(f"the loss is not finite in epoch {number}")
    epoch = {
        "epoch": number,
        "steps": steps,
        "rows": int(rows),
        "began": began,
        "train_seconds": train_seconds,
        "validation_seconds": None,
        "loss": losses / rows,
        "accuracy": right / rows,
        "validation_accuracy": None,
        "validation_loss": None,
        "scores": {},
        "row_moments": row_moments(np.concatenate(taken)),
    }
    return epoch, of_ranks.tolist()


def _require_finite(records: list[tuple]) -> None:
    """Refuse steps of which the last has a loss that is not finite."""
    if math.isfinite(float(records[-1][5])):
        return
    epoch, step, *_ = next(record for record in records if not math.isfinite(float(record[5])))
    raise Diverged(f"the loss is not finite in epoch {epoch}, step {step}")
