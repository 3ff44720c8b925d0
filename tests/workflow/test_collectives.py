"""Collectives are timed inside real ranks, and a calibration is a target."""

from __future__ import annotations

import pytest

from escala.experiment import Experiment
from tests.workflow.conftest import SIMULATED, add_workload, experiment_of, measured

pytestmark = pytest.mark.all_cores

SIZES = [1024, 65536, 2**20]
BLOCKS = {"steps": 37, "block": 3}
ROUNDS = 4


@pytest.mark.parametrize(
    ("strategy", "library", "alone"),
    [
        ("horovod-mpi", "mpi", True),
        pytest.param("multiworker-mirrored", "tensorflow", False, marks=pytest.mark.sweep),
        pytest.param("ddp-gloo", "torch-gloo", True, marks=[pytest.mark.torch, pytest.mark.sweep]),
        pytest.param("jax-gloo", "jax-gloo", True, marks=[pytest.mark.jax, pytest.mark.sweep]),
    ],
)
def test_collectives_and_steps_are_timed_inside_the_ranks(
    small_split, tmp_path, strategy, library, alone
):
    settings = experiment_of(
        "timed",
        SIMULATED,
        configurations=[{"strategy": strategy, "layouts": ["1x2"]}],
        workloads={"virus-cnn": {"epochs": 1, "batch": {"rows": 2, "per": "global"}}},
        collectives={"sizes": SIZES, "rounds": 2, "seconds": 1, **BLOCKS},
    )
    experiment = Experiment(settings, "timed.yaml")
    [run] = experiment.runs_under("collectives")
    found = measured(experiment.request(run), small_split, tmp_path)["collectives"]
    assert found["library"] == library
    assert {name: len(rates) for name, rates in found["core"].items()} == {
        "bytes_per_second": 2,
        "operations_per_second": 2,
    }
    timed = {(each["operation"], each["bytes"]): each["seconds"] for each in found["times"]}
    # PyTorch and JAX gather nothing in a step.
    gathers = ["allgather"] * strategy.startswith(("horovod", "multiworker"))
    assert set(timed) == {(name, size) for name in ("allreduce", *gathers) for size in SIZES}
    assert all(len(each) == 2 and min(each) > 0 for each in timed.values())
    for name in ("contention", "exchange_seconds", "alone_seconds"):
        assert len(found[name]) == (ROUNDS if alone else 0)


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("horovod-gloo", marks=pytest.mark.sweep),
        pytest.param("ddp-gloo", marks=pytest.mark.torch),
    ],
)
def test_ranks_whose_layers_need_each_other_exchange_in_every_step(
    small_split, tmp_path, monkeypatch, strategy
):
    """A rank in its turn would wait for the others' rows, and they for the end of its turn."""
    add_workload("normalised", tmp_path / "site", monkeypatch)
    settings = experiment_of(
        "timed",
        SIMULATED,
        configurations=[{"strategy": strategy, "layouts": ["1x2"]}],
        workloads={"normalised": {"epochs": 1, "batch": {"rows": 2, "per": "global"}}},
        variants={"tuned": {"batch_norm": "synchronised"}},
        collectives={"sizes": SIZES[:2], "rounds": 2, "seconds": 1, **BLOCKS},
    )
    experiment = Experiment(settings, "timed.yaml")
    [run] = experiment.runs_under("collectives")
    found = measured(experiment.request(run), small_split, tmp_path)["collectives"]
    assert found["contention"] == found["exchange_seconds"] == [] and found["times"]


def test_predictions_and_advice_are_targets_that_need_no_run_of_the_experiment(dry_run):
    code, text = dry_run("predictions", "advice", experiment=experiment_of("small", SIMULATED))
    assert code == 0, text
    assert "Measure small-calibration" in text and "Measure small\n" not in text
    for name in ("calibration.json", "predictions", "advice"):
        assert f"results/small/{name}" in text
