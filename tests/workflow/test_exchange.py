"""Two real ranks train a model that an exchange can go wrong with, as Keras trains it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from escala.core.files import read_json
from escala.record import collect
from escala.record.invariants import plan_epochs, violated_invariant
from tests.conftest import selected
from tests.workflow import exchange
from tests.workflow.real_ranks import mean_losses, ranks_of, started

#: Float32 sums taken in other orders, over six steps of plain gradient descent. Normalisation
#: divides by standard deviations of few rows.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}
NORMALISED = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which both ranks have trained every case of this call."""
    folder = tmp_path_factory.mktemp("exchange")
    (folder / "data").mkdir()
    exchange.write_data(folder / "data")
    known = [*exchange.CASES, *exchange.ROUNDED, *exchange.ALONE]
    names = selected(request, "case") | {
        *exchange.ROUNDED, exchange.CLOCKED, "leading", "synchronised, two steps a call"
    }  # fmt: skip
    started(exchange.__file__, folder, *(name for name in known if name in names))
    return folder


def measured(trained: Path, case: str) -> tuple[list[dict], pd.DataFrame, dict]:
    """Return what each process measured, the steps, and the plan."""
    processes, folder = (1 if case in exchange.ALONE else 2), trained / case
    ranks, table = ranks_of(folder, processes), collect.read_steps(folder / "ranks", processes)
    return ranks, table, read_json(folder / "ranks" / "plan.json")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(name, marks=[pytest.mark.sweep] if name in exchange.SWEPT else [])
        for name in (*exchange.CASES, *exchange.ALONE)
    ],
)
def test_ranks_train_as_keras_does_and_keep_the_invariants_of_a_run(trained, case):
    """With layers of one name, and the regularisers counted once a step, however it is shared."""
    ranks, table, plan = measured(trained, case)
    reference = exchange.reference_of(case)
    keras = trained / "keras" / reference
    tolerance = NORMALISED if reference == "synchronised" else TOLERANCE
    expected = read_json(keras / "losses.json")
    losses = mean_losses(table)
    np.testing.assert_allclose(losses, expected["steps"], **tolerance)
    for rank in ranks:
        test_loss = rank["epochs"][-1]["validation_loss"]
        np.testing.assert_allclose(test_loss, expected["test"], **tolerance)
    found, expected = (np.load(f / "model.npz") for f in (trained / case / "ranks", keras))
    assert found.files == expected.files
    for name in expected.files:
        np.testing.assert_allclose(found[name], expected[name], **tolerance)
    warm = read_json(trained / case / exchange.WARM.format(0))
    assert warm[-1] == ranks[0]["fractions"], "what it compiles has the rows that it trains"
    if case in exchange.CASES:
        assert_invariants(ranks, table, plan)


def assert_invariants(ranks: list[dict], table: pd.DataFrame, plan: dict) -> None:
    """Assert that both ranks have equal weights, and each the rows of its shard and no others."""
    assert ranks[0]["weights_sha256"] == ranks[1]["weights_sha256"]
    for rank in ranks:
        # The other layer that need not be summed has three outputs.
        wanted = plan["knobs"]["dense_exchange"]
        expected = [] if wanted == "allreduce" else [wanted, "allreduce"]
        assert list(rank["dense_exchange"].values()) == expected
    planned = plan_epochs(plan, ranks[0])
    assert violated_invariant(planned, ranks, table, exchange.ROWS) is None
    if 0 not in ranks[0]["fractions"]:
        knobs = plan["knobs"] | {"shard": "leading" if plan["knobs"]["shard"] is True else True}
        otherwise = plan_epochs(plan | {"knobs": knobs}, ranks[0])
        problem = violated_invariant(otherwise, ranks, table, exchange.ROWS)
        assert "did not train on the rows" in problem


def test_steps_of_one_call_share_its_time(trained):
    """The last step of an epoch has fewer rows, and is a call of its own."""
    _, table, _ = measured(trained, "synchronised, two steps a call")
    times = np.array(
        [epoch.sort_values("step")["step_seconds"] for _, epoch in table.groupby(["rank", "epoch"])]
    )
    first, second, last = times.T
    np.testing.assert_array_equal(first, second)
    # Two calls may take the same time once, but not always.
    assert (second != last).any()


def test_parts_of_a_step_are_refused_where_layers_normalise_over_all_ranks(trained):
    reason = (trained / exchange.REFUSED).read_text()
    assert "over all ranks, which needs accumulation: 1, not 2" in reason


def test_ranks_that_take_the_leading_rows_leave_half_of_the_rows_out(trained):
    ranks, _, plan = measured(trained, "leading")
    planned = plan_epochs(plan, ranks[0])
    for number, expected in enumerate(planned):
        rows = sum(rank["epochs"][number]["rows"] for rank in ranks)
        assert rows == expected.rows == exchange.ROWS
        assert expected.distinct == exchange.ROWS // 2
    assert [rank["evaluated"] for rank in ranks] == [[0, exchange.ROWS], [0, 0]]


def test_moments_of_variables_of_one_name_are_told_apart(trained):
    clocks = pd.read_csv(trained / exchange.CLOCKED / "ranks/rank0.clocks.csv")
    clocks = clocks.dropna(subset="tensor")
    names = clocks["tensor"].unique().tolist()
    assert [name for name in names if name.endswith(".same/kernel")] == [
        "7.same/kernel",
        "9.same/kernel",
    ]
    by_step = clocks.groupby(["epoch", "step", "moment", "tensor"]).size()
    assert (by_step == 1).all() and len(by_step) == 6 * 3 * len(names)


def test_rounded_gradients_train_otherwise_and_both_ranks_alike(trained):
    ranks, table, _ = measured(trained, "rounded")
    exact = read_json(trained / "keras" / "plain" / "losses.json")["steps"]
    np.testing.assert_allclose(mean_losses(table), exact, rtol=0.05)
    [one, other], [unrounded, _] = (
        [rank["weights_sha256"] for rank in each]
        for each in (ranks, measured(trained, "horovod-mpi")[0])
    )
    assert one == other != unrounded
