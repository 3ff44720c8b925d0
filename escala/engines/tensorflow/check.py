"""Compute outputs, losses and gradients for the check of a workload (`workload_check.network`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType

import numpy as np
import tensorflow as tf

from escala.engines.base import Engine
from escala.workloads.models import given, names_of_scores


def outputs_of(engine: Engine, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return the outputs of rows, outside training."""
    return engine.model(given([tf.constant(each) for each in inputs]), training=False).numpy()


def losses_of(
    work: ModuleType, settings: Mapping, targets: np.ndarray, outputs: np.ndarray
) -> tuple[np.ndarray, set[str]]:
    """Return what `row_losses` gives for rows, and the names of their `row_scores`."""
    rows = tf.constant(targets), tf.constant(outputs)
    return np.asarray(work.row_losses(*rows, settings)), names_of_scores(work, *rows)


def gradients(
    engine: Engine, work: ModuleType, inputs: Sequence[np.ndarray], targets: np.ndarray
) -> list[tuple[str, np.ndarray | None]]:
    """Return each trained variable by its name, with its gradient if the loss depends on it."""
    model = engine.model
    with tf.GradientTape() as tape:
        outputs = model(given([tf.constant(each) for each in inputs]), training=True)
        losses = work.row_losses(tf.constant(targets), outputs, engine.plan["training"])
        loss = tf.add_n([tf.reduce_sum(losses), *model.losses])
    variables = model.trainable_variables
    found = tape.gradient(loss, variables)
    dense = [each if each is None else tf.convert_to_tensor(each).numpy() for each in found]
    return [(variable.name, each) for variable, each in zip(variables, dense, strict=True)]
