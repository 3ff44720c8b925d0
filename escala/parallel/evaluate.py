"""The evaluation of a trained model: each rank predicts a part of the rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType

import numpy as np
import tensorflow as tf

from escala.data.base import Arrays
from escala.parallel.shards import evaluation_rows
from escala.parallel.step import most_probable_is_right, row_signature
from escala.parallel.strategies import Strategy
from escala.workloads.models import given, row_blocks


def evaluator(model: tf.keras.Model, work: ModuleType, data: Arrays) -> Callable:
    """Return a compiled function of the inputs and targets of some rows.

    It returns their predictions and the sum of their scores.
    """
    predict = getattr(work, "predict", most_probable)
    correct = getattr(work, "correct", most_probable_is_right)

    @tf.function(input_signature=row_signature(data))
    def evaluate(*arguments):
        *inputs, targets = arguments
        outputs = model(given(inputs), training=False)
        return predict(outputs), tf.reduce_sum(correct(targets, outputs))

    return evaluate


def most_probable(outputs: tf.Tensor) -> tf.Tensor:
    """Return the number of the most probable class, int64."""
    return tf.argmax(outputs, axis=-1)


def evaluated(evaluate: Callable, data: Arrays, side: str, rows: slice) -> tuple:
    """Return the predictions for some rows of a side, and the sum of their scores."""
    predictions, right = [], 0.0
    for block in row_blocks(rows):
        inputs, targets = data.gather(side, block)
        predicted, of_block = evaluate(*inputs, targets)
        predictions.append(predicted.numpy())
        right += float(of_block)
    if not predictions:
        form = evaluate.get_concrete_function().structured_outputs[0]
        return np.empty((0, *form.shape[1:]), form.dtype.as_numpy_dtype), right
    return np.concatenate(predictions), right


def validate(evaluate: Callable, data: Arrays, strategy: Strategy) -> dict:
    """Return the scores of the test rows over all ranks, as they enter an epoch's record."""
    start = time.perf_counter()
    rows = evaluation_rows(data.rows("test"), *strategy.part)
    _, right = evaluated(evaluate, data, "test", rows)
    right = strategy.total(np.array([right], np.float64))[0]
    return {
        "test_accuracy": right / data.rows("test"),
        "validation_seconds": time.perf_counter() - start,
    }
