"""Predictions of workloads that are trained by steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

import tensorflow as tf

from escala.workloads.graphs import function_of


def predicting(work: ModuleType, model: tf.keras.Model, settings: Mapping) -> Callable:
    """Return the function from the inputs and outputs of some rows to their predictions.

    Parameters
    ----------
    work : the module `model` of the workload.
    settings : of the workload.
    """
    if hasattr(work, "generate"):
        generate = function_of(work, "generate")
        return lambda inputs, outputs: generate(model, inputs, settings)
    predict = function_of(work, "predict", most_probable)
    return lambda inputs, outputs: predict(outputs)


def most_probable(outputs: tf.Tensor) -> tf.Tensor:
    """Return the number of the most probable class, int64."""
    return tf.argmax(outputs, axis=-1)
