"""The evaluation of a trained model: each rank predicts a part of the rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import ModuleType

import numpy as np
import tensorflow as tf

from escala.core.errors import Diverged
from escala.data.base import Arrays
from escala.strategies import Strategy
from escala.training.data import not_finite
from escala.training.shards import evaluation_rows
from escala.training.step import most_probable_is_right, row_signature
from escala.workloads.models import given, row_blocks


def evaluator(
    model: tf.keras.Model, work: ModuleType, row_losses: Callable, data: Arrays
) -> Callable:
    """Return a compiled function of the inputs and targets of some rows.

    It returns their predictions and the sums over the rows of each loss and score: `loss`, to which
    regularisers add, `correct`, and the workload's own.
    """
    predict = getattr(work, "predict", most_probable)
    correct = getattr(work, "correct", most_probable_is_right)
    row_scores = getattr(work, "row_scores", no_scores)

    @tf.function(input_signature=row_signature(data))
    def evaluate(*arguments):
        *inputs, targets = arguments
        outputs = model(given(inputs), training=False)
        losses = row_losses(targets, outputs)
        if of_model := model.losses:
            losses += tf.add_n(of_model)
        scores = {"loss": losses, "correct": correct(targets, outputs)}
        scores |= row_scores(targets, outputs)
        return predict(outputs), {name: tf.reduce_sum(each) for name, each in scores.items()}

    return evaluate


def most_probable(outputs: tf.Tensor) -> tf.Tensor:
    """Return the number of the most probable class, int64."""
    return tf.argmax(outputs, axis=-1)


def no_scores(targets: tf.Tensor, outputs: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return no scores but those that every workload has."""
    return {}


def evaluated(
    evaluate: Callable, data: Arrays, side: str, rows: slice
) -> tuple[np.ndarray, dict[str, float]]:
    """Return the predictions for some rows of a side, and the sums of their losses and scores."""
    form, names = evaluate.get_concrete_function().structured_outputs
    predictions = [np.empty((0, *form.shape[1:]), form.dtype.as_numpy_dtype)]
    sums = dict.fromkeys(names, 0.0)
    for block in row_blocks(rows):
        inputs, targets = data.gather(side, block)
        predicted, of_block = evaluate(*inputs, targets)
        predictions.append(predicted.numpy())
        sums = {name: sums[name] + float(of_block[name]) for name in sums}
    return np.concatenate(predictions), sums


def validate(
    evaluate: Callable, data: Arrays, side: str, strategy: Strategy, divided: bool = True
) -> dict:
    """Return the means of a side's losses and scores over all ranks, for an epoch's record.

    Parameters
    ----------
    divided : whether the processes divide the rows; otherwise the first evaluates all.

    Raises
    ------
    Diverged : the loss is infinite or not a number.
    ValueError : a score of the workload is.
    """
    start = time.perf_counter()
    rows = evaluation_rows(data.rows(side), *strategy.part, divided)
    _, sums = evaluated(evaluate, data, side, rows)
    totals = strategy.total(np.array([*sums.values()], np.float64)) / data.rows(side)
    means = dict(zip(sums, totals.tolist(), strict=True))
    loss, accuracy = means.pop("loss"), means.pop("correct")
    if not math.isfinite(loss):
        raise Diverged(f"the {side} loss is {loss}")
    if problem := not_finite(means):
        raise ValueError(f"{problem}: `row_scores` must give a finite number for each {side} row")
    return {
        "validation_accuracy": accuracy,
        "validation_loss": loss,
        "scores": means,
        "validation_seconds": time.perf_counter() - start,
    }
