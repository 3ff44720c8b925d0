"""Two real ranks train a model that an exchange can go wrong with, as Keras trains it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from escala.core.errors import Unavailable
from escala.core.files import read_json
from escala.engines.tensorflow import replicas
from escala.engines.tensorflow.engine import TensorFlow
from escala.record import steps
from escala.record.invariants import broken_promise, planned_epochs
from escala.training import train
from tests.workflow import exchange
from tests.workflow.real_ranks import ranks_by, ranks_of, started

#: Float32 sums taken in other orders, over six steps of plain gradient descent. Normalisation
#: divides by standard deviations of few rows.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}
NORMALISED = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which both ranks have trained every case."""
    folder = tmp_path_factory.mktemp("exchange")
    (folder / "data").mkdir()
    exchange.write_data(folder / "data")
    started(exchange.__file__, folder)
    return folder


@pytest.mark.parametrize("case", [*exchange.CASES, *exchange.ALONE])
def test_weights_and_losses_are_those_of_keras(trained, case):
    """With layers of one name, and the regularisers counted once a step, however it is shared."""
    table = steps_of(trained, case)
    losses = steps.loss_per_step(table)["loss"]
    reference = exchange.reference_of(case)
    keras = trained / "keras" / reference
    tolerance = NORMALISED if reference == "synchronised" else TOLERANCE
    expected = read_json(keras / "losses.json")
    np.testing.assert_allclose(losses, expected["steps"], **tolerance)
    for rank in measured(trained, case):
        of_test = rank["epochs"][-1]["validation_loss"]
        np.testing.assert_allclose(of_test, expected["test"], **tolerance)
    found, expected = (np.load(f / "model.npz") for f in (trained / case / "ranks", keras))
    assert found.files == expected.files
    for name in expected.files:
        np.testing.assert_allclose(found[name], expected[name], **tolerance)


@pytest.mark.parametrize("case", exchange.CASES)
def test_the_wide_layer_has_the_exchange_that_was_asked_for(trained, case):
    """The other layer that need not be summed has three outputs."""
    wanted = exchange.CASES[case][1].get("dense_exchange")
    for rank in measured(trained, case):
        expected = [wanted, "allreduce"] if wanted else []
        assert list(rank["dense_exchange"].values()) == expected


def test_steps_of_one_call_share_its_time(trained):
    """The last step of an epoch has fewer rows, and is a call of its own."""
    table = steps_of(trained, "two steps a call")
    for _, epoch in table.groupby(["rank", "epoch"]):
        first, second, last = epoch.sort_values("step")["step_seconds"]
        assert first == second != last


def processes(case: str) -> int:
    return 1 if case in exchange.ALONE else 2


def measured(trained: Path, case: str) -> list[dict]:
    return ranks_of(trained / case, processes(case))


def steps_of(trained: Path, case: str) -> pd.DataFrame:
    return steps.read(trained / case / "ranks", processes(case))


@pytest.mark.parametrize("case", exchange.CASES)
def test_the_ranks_keep_the_invariants_of_a_run(trained, case):
    plan = read_json(trained / case / "ranks" / "plan.json")
    ranks, table = measured(trained, case), steps_of(trained, case)
    planned = planned_epochs(plan, ranks[0])
    assert broken_promise(planned, ranks, table, exchange.ROWS) is None
    if 0 not in ranks[0]["shares"]:
        knobs = plan["knobs"] | {"shard": "leading" if plan["knobs"]["shard"] is True else True}
        otherwise = planned_epochs(plan | {"knobs": knobs}, ranks[0])
        problem = broken_promise(otherwise, ranks, table, exchange.ROWS)
        assert "did not train on the rows" in problem


def test_parts_of_a_step_are_refused_where_layers_normalise_over_all_ranks(tmp_path, monkeypatch):
    exchange.write_data(tmp_path)
    monkeypatch.setattr(train, "workload", lambda name: exchange.WORKLOAD)
    monkeypatch.setattr(train, "of_model", lambda knobs, name: knobs)
    monkeypatch.setattr(train, "scores_module", lambda name: None)
    monkeypatch.setattr(replicas, "use_generators", lambda: None)
    asked = exchange.request(tmp_path, "single", exchange.SYNCHRONISED | {"accumulation": 2}, None)
    single = ranks_by("single", asked["knobs"], exchange.place_of("single", 0))
    asked["ranks"] = 1
    with pytest.raises(Unavailable, match="over all ranks, which needs accumulation: 1, not 2"):
        train.train(asked, TensorFlow(asked, single), tmp_path)


def test_ranks_that_take_the_leading_rows_leave_half_of_the_rows_out(trained):
    ranks = measured(trained, "leading")
    plan = read_json(trained / "leading" / "ranks" / "plan.json")
    planned = planned_epochs(plan, ranks[0])
    for epoch, of_plan in zip(ranks[0]["epochs"], planned, strict=True):
        assert epoch["rows"] == of_plan.rows == exchange.ROWS
        assert of_plan.distinct == exchange.ROWS // 2
    assert [rank["evaluated"] for rank in ranks] == [[0, exchange.ROWS], [0, 0]]


def test_moments_of_variables_of_one_name_are_told_apart(trained):
    clocks = pd.read_csv(trained / exchange.CLOCKED / "ranks/rank0.clocks.csv").dropna()
    names = clocks["tensor"].unique().tolist()
    assert [name for name in names if name.endswith(".same/kernel")] == [
        "7.same/kernel",
        "9.same/kernel",
    ]
    by_step = clocks.groupby(["epoch", "step", "moment", "tensor"]).size()
    assert (by_step == 1).all() and len(by_step) == 6 * 3 * len(names)


def test_rounded_gradients_train_otherwise(trained):
    [case] = exchange.ROUNDED
    losses = steps.loss_per_step(steps_of(trained, case))["loss"]
    exact = read_json(trained / "keras" / "plain" / "losses.json")["steps"]
    np.testing.assert_allclose(losses, exact, rtol=0.05)
    found, exact = (
        read_json(trained / name / "ranks" / "rank0.json")["weights_sha256"]
        for name in (case, "horovod-mpi")
    )
    assert found != exact


@pytest.mark.parametrize("case", [*exchange.CASES, *exchange.ROUNDED])
def test_both_ranks_hold_these_weights(trained, case):
    ranks = measured(trained, case)
    assert ranks[0]["weights_sha256"] == ranks[1]["weights_sha256"]
