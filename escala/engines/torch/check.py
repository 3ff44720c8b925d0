"""Compute outputs, losses and gradients for the check of a workload (`workload_check.network`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType

import numpy as np
import torch

from escala.engines.base import Engine
from escala.engines.torch.building import evaluation
from escala.workloads.models import given, names_of_scores


@torch.no_grad()
def outputs_of(engine: Engine, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return the outputs of rows, outside training."""
    with evaluation(engine.model):
        return engine.model(given([torch.tensor(each) for each in inputs])).numpy()


@torch.no_grad()
def losses_of(
    work: ModuleType, settings: Mapping, targets: np.ndarray, outputs: np.ndarray
) -> tuple[np.ndarray, set[str]]:
    """Return what `row_losses` gives for rows, and the names of their `row_scores`."""
    rows = torch.tensor(targets), torch.tensor(outputs)
    return np.asarray(work.row_losses(*rows, settings)), names_of_scores(work, *rows)


def gradients(
    engine: Engine, work: ModuleType, inputs: Sequence[np.ndarray], targets: np.ndarray
) -> list[tuple[str, np.ndarray | None]]:
    """Return each trained parameter by its name, with its gradient if the loss depends on it."""
    outputs = engine.model(given([torch.tensor(each) for each in inputs]))
    loss = work.row_losses(torch.tensor(targets), outputs, engine.plan["training"]).sum()
    named = [each for each in engine.model.named_parameters() if each[1].requires_grad]
    found = [None] * len(named)
    if loss.requires_grad:
        found = torch.autograd.grad(loss, [each for _, each in named], allow_unused=True)
    return [
        (name, each if each is None else each.to_dense().numpy())
        for (name, _), each in zip(named, found, strict=True)
    ]
