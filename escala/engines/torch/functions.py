"""Functions of a workload as a run calls them: losses, predictions and scores of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType

import numpy as np
import torch
from torch import nn

from escala.data.base import Spec
from escala.engines.torch import arrays, building
from escala.engines.torch.building import evaluation
from escala.workloads import models as contract
from escala.workloads.models import given


def scoring(work: ModuleType) -> Callable:
    """Return the function from targets and outputs to the correctness of each row, float32."""
    return getattr(work, "correct", most_probable_is_right)


def most_probable_is_right(targets: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Return 1 for each row whose most probable class is its target and 0 otherwise, float32."""
    return (outputs.argmax(-1) == targets).float()


#: The function of a workload's module, a model and settings to the predictions of rows.
predicting = partial(contract.predicting, most_probable=lambda outputs: outputs.argmax(-1))


def evaluating(
    model: nn.Module,
    work: ModuleType,
    row_losses: Callable,
    settings: Mapping,
    device: torch.device,
) -> Callable:
    """Return the evaluation, a function of the inputs and the targets of some rows.

    It returns their predictions and the sums over the rows of each loss and score: `loss`,
    `correct`, and the workload's own. It raises ValueError if the workload gives one of its scores
    a name of `contract.SUMMED`.
    """
    correct = scoring(work)
    predictions = predicting(work, model, settings)
    row_scores = getattr(work, "row_scores", lambda targets, outputs: {})

    @torch.no_grad()
    def evaluate(*arrays: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
        # The arrays may be mapped files, which no model may change.
        *inputs, targets = (torch.from_numpy(np.array(each)).to(device) for each in arrays)
        with evaluation(model):
            outputs = model(given(inputs))
            found = predictions(inputs, outputs).cpu().numpy()
        further = row_scores(targets, outputs)
        losses = row_losses(targets, outputs)
        scores = contract.named_sums(losses, correct(targets, outputs), further)
        return found, {name: float(each.sum()) for name, each in scores.items()}

    return evaluate


def restored(
    work: ModuleType,
    specs: Sequence[Spec],
    outputs: tuple[int, ...],
    settings: Mapping,
    knobs: Mapping,
    weights: Mapping[str, np.ndarray],
    require: Callable[[Mapping[str, tuple], Mapping[str, np.ndarray]], None],
) -> tuple[Callable, Callable, tuple]:
    """Return the outputs and the predictions of a trained model, functions of its inputs.

    The outputs are probabilities if the workload has the function `probabilities`. The third value
    is the shape of the model's output for one row. `weights` are arrays by the names that
    `np.savez` gives. `require` refuses arrays that have other names or shapes than the model's.
    """
    model = building.build(work, specs, outputs, settings, knobs).eval()
    own = arrays.arrays(model)
    shapes = {f"arr_{number}": each.shape for number, each in enumerate(own)}
    require(shapes, weights)
    arrays.set_values(model, [weights[name] for name in shapes])
    predictions = predicting(work, model, settings)
    probabilities = getattr(work, "probabilities", lambda outputs, settings: outputs)

    @torch.no_grad()
    def computed(*rows: np.ndarray) -> np.ndarray:
        inputs = [torch.from_numpy(np.array(each)) for each in rows]
        return probabilities(model(given(inputs)), settings).numpy()

    @torch.no_grad()
    def predicted(*rows: np.ndarray) -> np.ndarray:
        inputs = [torch.from_numpy(np.array(each)) for each in rows]
        return predictions(inputs, model(given(inputs))).numpy()

    return computed, predicted, building.output_form(work, model, specs)
