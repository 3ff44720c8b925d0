"""The evaluation of a trained model: each rank predicts some of the rows."""

from __future__ import annotations

import math
import time
from types import ModuleType

import numpy as np

from escala.core.errors import Diverged
from escala.data.base import Arrays
from escala.engines.base import Engine
from escala.training.data import not_finite
from escala.training.shards import evaluation_rows
from escala.workloads.models import row_blocks


def evaluated(
    engine: Engine, data: Arrays, side: str, rows: slice
) -> tuple[np.ndarray, dict[str, float]]:
    """Return the predictions for some rows of a side, and the sums of their losses and scores."""
    blocks = list(row_blocks(rows, engine.rows_at_once))
    # For the form of what no rows have, one is predicted.
    found = [engine.evaluate(*data.gather(side, block)) for block in blocks or [slice(0, 1)]]
    names = found[0][1]
    if not blocks:
        return found[0][0][:0], dict.fromkeys(names, 0.0)
    sums = {name: sum((each[name] for _, each in found), 0.0) for name in names}
    return np.concatenate([predictions for predictions, _ in found]), sums


def validate(
    engine: Engine,
    data: Arrays,
    side: str,
    scores: ModuleType | None = None,
    divided: bool = True,
) -> dict:
    """Return a side's losses and scores over all ranks, for an epoch's record.

    `scores` is the module of this name of the workload, if it has one. If the processes do not
    divide the rows (`divided`), the first evaluates all.

    Raise `Diverged` if the loss is not finite. It is a ValueError if a score of the workload is not
    finite, its counts do not have the shape (rows, n), or two of its scores have one name.
    """
    start = time.perf_counter()
    rows = evaluation_rows(data.rows(side), engine.place.process, engine.place.processes, divided)
    predictions, sums = evaluated(engine, data, side, rows)
    counted = _counted(scores, data.gather(side, rows)[1], predictions)
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


def _counted(scores: ModuleType | None, targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return the sums over rows of what a workload counts, float64 (n,); (0,) if it counts nothing.

    Counts that are not those of these rows are a ValueError.
    """
    if not (hasattr(scores, "counts") and hasattr(scores, "scores_of")):
        return np.empty(0)
    counts = np.asarray(scores.counts(targets, predictions), np.float64)
    if counts.ndim != 2 or len(counts) != len(targets) or not counts.shape[1]:
        raise ValueError(
            f"`counts` gives the shape {counts.shape} for {len(targets)} rows in place of (rows, n)"
        )
    return counts.sum(axis=0)
