"""The evaluation of a trained model: each rank predicts a part of the rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from escala.core.errors import Diverged
from escala.data.base import Arrays
from escala.strategies import Strategy
from escala.training.data import not_finite
from escala.training.shards import evaluation_rows
from escala.training.step import most_probable_is_right, row_signature
from escala.workloads.graphs import as_graph, function_of
from escala.workloads.models import given, row_blocks, rows_at_once
from escala.workloads.predictions import predicting

#: Names of the sums that every workload has.
SUMMED = ("loss", "correct")


class Evaluator(NamedTuple):
    """The evaluation of a model.

    Attributes
    ----------
    function : of the inputs and targets of some rows, compiled. It returns their predictions and
        the sums over the rows of each loss and score: `loss`, to which regularisers add, `correct`,
        and the workload's own.
    rows : the number of rows that it is called with at once.
    """

    function: Callable
    rows: int


def evaluator(
    model: tf.keras.Model, work: ModuleType, row_losses: Callable, data: Arrays, settings: Mapping
) -> Evaluator:
    """Return the evaluation of a workload's model with its settings.

    Its first call raises ValueError if the workload gives one of its scores a name of `SUMMED`.
    """
    predictions = predicting(work, model, settings)
    correct = function_of(work, "correct", most_probable_is_right)
    row_scores = function_of(work, "row_scores", no_scores)

    @as_graph(input_signature=row_signature(data))
    def evaluate(*arguments):
        *inputs, targets = arguments
        outputs = model(given(inputs), training=False)
        losses = row_losses(targets, outputs)
        if of_model := model.losses:
            losses += tf.add_n(of_model)
        scores = dict(zip(SUMMED, (losses, correct(targets, outputs)), strict=True))
        own = row_scores(targets, outputs)
        if taken := own.keys() & scores.keys():
            raise ValueError(
                f"`row_scores` gives the score {min(taken)}, which is a name of the run's own"
            )
        return predictions(inputs, outputs), {
            name: tf.reduce_sum(each) for name, each in (scores | own).items()
        }

    return Evaluator(evaluate, rows_at_once(model))


def no_scores(targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return no scores but those that every workload has."""
    return {}


def evaluated(
    evaluate: Evaluator, data: Arrays, side: str, rows: slice
) -> tuple[np.ndarray, dict[str, float]]:
    """Return the predictions for some rows of a side, and the sums of their losses and scores."""
    form, names = evaluate.function.get_concrete_function().structured_outputs
    predictions = [np.empty((0, *form.shape[1:]), form.dtype.as_numpy_dtype)]
    sums = dict.fromkeys(names, 0.0)
    for block in row_blocks(rows, evaluate.rows):
        inputs, targets = data.gather(side, block)
        predicted, of_block = evaluate.function(*inputs, targets)
        predictions.append(predicted.numpy())
        sums = {name: sums[name] + float(of_block[name]) for name in sums}
    return np.concatenate(predictions), sums


def validate(
    evaluate: Evaluator,
    data: Arrays,
    side: str,
    strategy: Strategy,
    scores: ModuleType | None = None,
    divided: bool = True,
) -> dict:
    """Return a side's losses and scores over all ranks, for an epoch's record.

    Parameters
    ----------
    scores : the module `scores` of the workload, if it has one.
    divided : whether the processes divide the rows; otherwise the first evaluates all.

    Raises
    ------
    Diverged : the loss is infinite or not a number.
    ValueError : a score of the workload is not finite, or its counts do not have the shape
        (rows, n); or two of its scores have one name.
    """
    start = time.perf_counter()
    rows = evaluation_rows(data.rows(side), *strategy.part, divided)
    predictions, sums = evaluated(evaluate, data, side, rows)
    counted = _counted(scores, data.gather(side, rows)[1], predictions)
    totals = strategy.total(np.array([*sums.values(), *counted], np.float64))
    means = dict(zip(sums, (totals[: len(sums)] / data.rows(side)).tolist(), strict=True))
    loss, accuracy = means.pop("loss"), means.pop("correct")
    if not math.isfinite(loss):
        raise Diverged(f"the {side} loss is {loss}")
    if problem := not_finite(means):
        raise ValueError(f"{problem}: `row_scores` must give a finite number for each {side} row")
    of_sums = scores.scores_of(totals[len(sums) :]) if counted.size else {}
    if problem := not_finite(of_sums):
        raise ValueError(f"{problem}: `scores_of` must give finite numbers, or leave a score out")
    if twice := means.keys() & of_sums.keys():
        raise ValueError(f"score {min(twice)} is given by row_scores and by scores_of")
    return {
        "validation_accuracy": accuracy,
        "validation_loss": loss,
        "scores": means | of_sums,
        "validation_seconds": time.perf_counter() - start,
    }


def _counted(scores: ModuleType | None, targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return the sums over rows of what a workload counts, float64 (n,); (0,) if it counts nothing.

    Raises
    ------
    ValueError : the counts are not those of these rows.
    """
    if not (hasattr(scores, "counts") and hasattr(scores, "scores_of")):
        return np.empty(0)
    counts = np.asarray(scores.counts(targets, predictions), np.float64)
    if counts.ndim != 2 or len(counts) != len(targets) or not counts.shape[1]:
        raise ValueError(
            f"`counts` gives the shape {counts.shape} for {len(targets)} rows in place of (rows, n)"
        )
    return counts.sum(axis=0)
