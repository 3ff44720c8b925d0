"""Runs of all engines that begin with the same weights, and read the same rows."""

from __future__ import annotations

import numpy as np
import pytest

from escala.core.engines import DEFAULT, ENGINES
from escala.data.base import Arrays
from escala.predict.model import load
from escala.record import collect
from tests.workflow.conftest import measured
from tests.workflow.real_ranks import mean_losses

#: RMSprop divides by the size of a gradient: where that is near 0, rounding decides.
TOLERANCE = 1e-3
#: Code that every Python process begins with: a rank wants more memory than any machine has.
WANTING = """
from escala.training import train

def warm_up(*given):
    import torch
    torch.empty(2**50)

train.warm_up = warm_up
"""


@pytest.mark.parametrize(
    "engine",
    [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ENGINES if name != DEFAULT],
)
def test_one_process_of_each_engine_makes_the_same_steps(
    small_split, request_for, tmp_path, engine
):
    losses, models, predictions = [], [], []
    alone = ENGINES[engine].one_process
    for strategy in ("single", alone):
        folder = tmp_path / strategy
        request = request_for(strategy, "1x1", initial_weights="seeded", save_model=True)
        measured(request, small_split, folder)
        losses.append(mean_losses(collect.read_steps(folder / "ranks", 1)))
        models.append(load(folder))
        predictions.append(np.load(folder / "predictions.npy"))
    np.testing.assert_allclose(*losses, rtol=TOLERANCE)
    # The first step begins with the same weights and has the same rows.
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-6)
    (codes,), _ = Arrays(small_split).gather("test", slice(None))
    by_tensorflow, by_other = (each.probabilities(codes) for each in models)
    np.testing.assert_allclose(by_tensorflow, by_other, atol=TOLERANCE)
    # Each model is computed by the engine that trained it.
    for model, predicted in zip(models, predictions, strict=True):
        np.testing.assert_array_equal(model.predictions(codes), predicted)
    # TensorFlow reads what the other has trained, too.
    path = tmp_path / alone / "model.json"
    path.write_text(path.read_text().replace(f'"engine": "{engine}"', '"engine": "tensorflow"'))
    np.testing.assert_allclose(load(path.parent).probabilities(codes), by_other, atol=1e-5)


@pytest.mark.torch
def test_ranks_that_compute_in_parts_make_the_steps_of_one_process(
    small_split, request_for, tmp_path
):
    runs, losses = [], []
    for strategy, layout, parts in (
        ("torch-single", "1x1", 1),
        ("ddp-gloo", "1x2", 3),
        ("fsdp", "1x2", 3),
    ):
        folder = tmp_path / strategy
        knobs, ranks = {"accumulation": parts}, int(layout[-1])
        request = request_for(strategy, layout, initial_weights="seeded", knobs=knobs)
        runs.append(measured(request, small_split, folder))
        losses.append(mean_losses(collect.read_steps(folder / "ranks", ranks)))
    for run, found in zip(runs[1:], losses[1:], strict=True):
        np.testing.assert_allclose(found, losses[0], rtol=TOLERANCE)
        assert run["epochs"][0]["accuracy"] == pytest.approx(runs[0]["epochs"][0]["accuracy"])


@pytest.mark.torch
def test_divergence_and_lack_of_memory_of_pytorch_are_statuses(
    small_split, request_for, tmp_path, imported
):
    rate = {"value": 3e38, "reference_batch": 32, "rule": "constant"}
    request = request_for("torch-single", "1x1", learning_rate=rate)
    measured(request, small_split, tmp_path / "diverged", "diverged")
    imported(WANTING)
    measured(request_for("ddp-gloo", "1x2"), small_split, tmp_path / "full", "out-of-memory")
