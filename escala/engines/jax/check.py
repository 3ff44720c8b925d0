"""Compute outputs, losses and gradients for the check of a workload (`workload_check.network`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType

import jax
import numpy as np

from escala.engines.base import Engine
from escala.workloads.models import names_of_scores


def outputs_of(engine: Engine, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return the outputs of rows, outside training."""
    return np.asarray(engine.model.outputs(engine.weights()[0], *inputs))


def losses_of(
    work: ModuleType, settings: Mapping, targets: np.ndarray, outputs: np.ndarray
) -> tuple[np.ndarray, set[str]]:
    """Return what `row_losses` gives for rows, and the names of their `row_scores`."""
    losses = np.asarray(work.row_losses(targets, outputs, settings))
    return losses, names_of_scores(work, targets, outputs)


def gradients(
    engine: Engine, work: ModuleType, inputs: Sequence[np.ndarray], targets: np.ndarray
) -> list[tuple[str, np.ndarray | None]]:
    """Return each array by its name, with its gradient if that is not 0."""

    def loss(arrays):
        outputs = engine.model.outputs(arrays, *inputs)
        return work.row_losses(targets, outputs, engine.plan["training"]).sum()

    [arrays] = engine.weights()
    found = map(np.asarray, jax.grad(loss)(arrays))
    named = zip(engine.model.arrays, found, strict=True)
    return [(array.name, each if each.any() else None) for array, each in named]
