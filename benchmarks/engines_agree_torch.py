"""PyTorch's side of `engines_agree`: `python engines_agree_torch.py FOLDER…`.

It prints a line of JSON for each folder."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from engines_agree import PRECISIONS, SEED, Case, batches, perturbed
from torch import nn

from escala.data.base import Spec
from escala.engines.torch import arrays
from escala.workloads.models import given


def numbered(stored: Any, name: str) -> list[np.ndarray]:
    """Return the arrays `name0`, `name1`, …"""
    count = sum(each.startswith(name) for each in stored.files)
    return [stored[f"{name}{number}"] for number in range(count)]


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference of two arrays, relative to the largest number in them."""
    return float(np.abs(ours - theirs).max() / (np.abs(theirs).max() or 1.0))


def evaluate(
    work: ModuleType,
    model: nn.Module,
    case: Case,
    inputs: list[torch.Tensor],
    targets: torch.Tensor,
) -> dict[str, np.ndarray]:
    """Return losses, correctness and predictions of some rows in an evaluation."""
    correct = getattr(work, "correct", most_probable_is_right)
    model.eval()
    with torch.no_grad():
        outputs = model(given(inputs))
        predictions = outputs.argmax(-1)
        if hasattr(work, "generate"):
            predictions = work.generate(model, inputs, case.settings)
        found = {
            "losses": work.row_losses(targets, outputs, case.settings),
            "correct": correct(targets, outputs),
            "predictions": predictions,
        }
    model.train()
    return {name: each.numpy().astype(np.float64) for name, each in found.items()}


def most_probable_is_right(targets: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(-1) == targets).float()


def difference_by(work: ModuleType, case: Case, knobs: dict, file: Path) -> dict[str, Any]:
    """Return how far what PyTorch computes differs from what TensorFlow has computed."""
    torch.set_default_dtype(getattr(torch, file.stem))
    model = work.build(case.inputs, case.outputs, case.settings, knobs)
    parameters = [each for each in model.parameters() if each.requires_grad]
    optimizer = work.optimizer(parameters, case.settings, case.rate, knobs)
    with np.load(file) as stored:
        weights = numbered(stored, "weight")
        inputs = [torch.from_numpy(each) for each in numbered(stored, "input")]
        targets = torch.from_numpy(stored["targets"])
        theirs = dict(stored)
        expected = numbered(stored, "gradient")
        curve, end = stored["curve"], numbered(stored, "end")
    # Keras casts to the type of its layers.
    inputs = [e.to(torch.get_default_dtype()) if e.dtype == torch.float32 else e for e in inputs]

    def computed(rows: list[torch.Tensor], answers: torch.Tensor) -> float:
        optimizer.zero_grad()
        found = work.row_losses(answers, model(given(rows)), case.settings).mean()
        found.backward()
        return found.item()

    arrays.begin(model, SEED)
    begun = perturbed(arrays.values(model).values())
    arrays.set_values(model, weights)
    first = next(batches(case, inputs, targets))
    evaluated = evaluate(work, model, case, *first)
    own = computed(*first)
    gradients = {
        name: difference(mine, other)
        for (name, mine), other in zip(arrays.gradients(model).items(), expected, strict=True)
    }
    worst = max(gradients, key=gradients.get)
    arrays.set_values(model, weights)
    losses = []
    for rows in batches(case, inputs, targets):
        losses.append(computed(*rows))
        optimizer.step()
    return {
        "parameters": arrays.parameters(model),
        "initial_difference": max(map(difference, begun, weights)),
        "loss_difference": abs(own / float(theirs["loss"]) - 1),
        "evaluation_difference": max(
            (difference(mine, theirs[name]) for name, mine in evaluated.items() if name in theirs),
            default=None,
        ),
        "gradient": worst,
        "gradient_difference": gradients[worst],
        "curve": [losses[0], losses[-1]],
        "curve_difference": float(np.abs(np.array(losses) / curve - 1).max()),
        "end_difference": max(map(difference, arrays.values(model).values(), end)),
    }


def main(folder: Path) -> None:
    described = json.loads((folder / "case.json").read_text())
    knobs = described.pop("knobs")
    specs = tuple(Spec(n, tuple(s), *rest) for n, s, *rest in described.pop("inputs"))
    case = Case(**described | {"inputs": specs, "outputs": tuple(described["outputs"])})
    work = import_module(f"escala.workloads.{case.workload.replace('-', '_')}.model_torch")
    files = (folder / f"{precision}.npz" for precision in PRECISIONS)
    print(json.dumps({each.stem: difference_by(work, case, knobs, each) for each in files}))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        main(Path(argument))
