"""PyTorch's side of `engines_agree`: `python engines_agree_torch.py FOLDER…`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
from engines_agree import SEED, Case, batches, numbered, print_differences
from torch import nn

from escala.engines.torch import arrays
from escala.engines.torch.functions import Functions
from escala.workloads.models import as_model_input


def evaluate(
    work: ModuleType,
    model: nn.Module,
    case: Case,
    inputs: list[torch.Tensor],
    targets: torch.Tensor,
) -> dict[str, np.ndarray]:
    """Return losses, correctness and predictions of some rows in an evaluation."""
    functions = Functions(work, case.settings)
    model.eval()
    with torch.no_grad():
        outputs = model(as_model_input(inputs))
        found = {
            "losses": functions.row_losses(targets, outputs),
            "correct": functions.correct(targets, outputs),
            "predictions": functions.predictions(model, inputs, outputs),
        }
    model.train()
    return {name: each.numpy() for name, each in found.items()}


def computed(
    work: ModuleType, case: Case, knobs: dict, precision: str, theirs: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Return what PyTorch computes with the weights and rows of TensorFlow."""
    torch.set_default_dtype(getattr(torch, precision))
    model = work.build(case.inputs, case.outputs, case.settings, knobs)
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = work.optimizer(parameters, case.settings, case.rate, knobs)
    weights = numbered(theirs, "weight")
    inputs = [torch.from_numpy(each) for each in numbered(theirs, "input")]
    targets = torch.from_numpy(theirs["targets"])
    # Keras casts to the type of its layers.
    inputs = [e.to(torch.get_default_dtype()) if e.dtype == torch.float32 else e for e in inputs]

    def loss_of(rows: list[torch.Tensor], answers: torch.Tensor) -> float:
        optimizer.zero_grad()
        found = work.row_losses(answers, model(as_model_input(rows)), case.settings).mean()
        found.backward()
        return found.item()

    arrays.initialise(model, SEED)
    begun = [*arrays.values(model).values()]
    arrays.set_values(model, weights)
    first = next(batches(case, inputs, targets))
    evaluation = evaluate(work, model, case, *first)
    loss = loss_of(*first)
    gradients = {
        array.name: replace(array, tensor=array.tensor.grad).value
        for array in arrays.arrays(model)
        if array.tensor.grad is not None
    }
    arrays.set_values(model, weights)
    curve = []
    for rows in batches(case, inputs, targets):
        curve.append(loss_of(*rows))
        optimizer.step()
    return {
        "parameters": arrays.parameters(model),
        "begun": begun,
        "loss": loss,
        "gradients": gradients,
        "evaluation": evaluation,
        "curve": curve,
        "end": [*arrays.values(model).values()],
    }


if __name__ == "__main__":
    print_differences("torch", computed)
