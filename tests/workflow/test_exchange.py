"""Two real ranks, and one process alone, train as Keras does: strategies × workloads × exchanges.

There is no dropout. With it, or with each rank's own normalisation, ranks do not follow one
process: `test_replicas` shows what holds then.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from escala.analysis import attribution
from escala.core.files import read_json
from escala.data.base import Spec
from escala.record import collect
from escala.record.invariants import invariant_fault, plan_epochs
from escala.workloads import WORKLOADS, workload
from tests.conftest import selected
from tests.workflow import ranks as script
from tests.workflow.conftest import mean_losses

pytestmark = pytest.mark.all_cores

#: Float32 sums taken in other orders, over six steps of plain gradient descent. Normalisation
#: divides by standard deviations of few rows.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}
NORMALISED = {"rtol": 1e-4, "atol": 1e-5}
RESNET = {"rtol": 1e-3}
#: Largest distance of a variable, in parts of the distance that training has moved it, and of its
#: size. Adam and RMSprop divide by the size of a gradient: where that is near 0, rounding decides.
MOVED, ROUNDING = 1e-2, 1e-6
TWO_STEPS = "one-pass, factors, two steps a call"
#: Inputs, outputs and knobs of sources, and their trained and other numbers. Those of further
#: workloads stand in their own tests.
PUBLISHED = {
    "mnist-mlp": ((28, 28, 1), "uint8", (10,), {}, 669_706, 0),
    "cifar-cnn": ((32, 32, 3), "uint8", (10,), {}, 276_138, 0),
    "resnet34": ((148, 197, 1), "float16", (9,), {"batch_norm": "local"}, 21_283_017, 17_024),
}


def test_each_workload_that_is_trained_by_steps_is_here():
    by_steps = {name for name, declared in WORKLOADS.items() if declared.takes_steps}
    assert {case.network for case in script.ALL.values()} == by_steps | {"peculiar"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_parameters_are_those_of_the_source(name):
    shape, dtype, outputs, knobs, trained, others = PUBLISHED[name]
    specs = (Spec("image", shape, dtype),)
    network = workload(name).build(specs, outputs, WORKLOADS[name].setting_defaults, knobs)
    for variables, number in (
        (network.trainable_variables, trained),
        (network.non_trainable_variables, others),
    ):
        assert sum(int(np.prod(variable.shape)) for variable in variables) == number


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the ranks have trained every case of this call."""
    folder = tmp_path_factory.mktemp("exchange")
    names = selected(request, "case") | {*script.ROUNDED, *script.RESUMED} | {
        "horovod-mpi", "leading", TWO_STEPS, "momentum in shared memory"
    }  # fmt: skip
    script.start(folder, (name for name in script.ALL if name in names))
    return folder


def measured(trained: Path, name: str) -> tuple[list[dict], pd.DataFrame, dict]:
    """Return what each process measured, the steps, and the plan."""
    processes = 1 if script.ALL[name].strategy in script.ALONE else 2
    ranks = script.ranks_of(trained / name, processes)
    table = collect.read_steps(trained / name / "ranks", processes)
    return ranks, table, read_json(trained / name / "ranks" / "plan.json")


def arrays_of(file: Path) -> list[np.ndarray]:
    with np.load(file) as arrays:
        return [arrays[name] for name in arrays.files]


@pytest.mark.parametrize(
    "case", [*script.CASES, *(pytest.param(n, marks=pytest.mark.sweep) for n in script.SWEPT)]
)
def test_ranks_train_as_keras_does_and_keep_the_invariants_of_a_run(trained, case):
    """With layers of one name, and the regularisers counted once a step, however it is shared."""
    (ranks, table, plan), about = measured(trained, case), script.ALL[case]
    keras = trained / "keras" / script.reference_of(about)
    tolerance = NORMALISED if "batch_norm" in about.knobs else TOLERANCE
    tolerance = RESNET if about.network == "resnet34" else tolerance
    expected = read_json(keras / "losses.json")
    np.testing.assert_allclose(mean_losses(table), expected["steps"], **tolerance)
    for rank in ranks:
        test_loss = rank["epochs"][-1]["validation_loss"]
        np.testing.assert_allclose(test_loss, expected["test"], **tolerance)
    files = keras / script.FIRST, keras / "model.npz", trained / case / "ranks" / "model.npz"
    for before, after, found in zip(*map(arrays_of, files), strict=True):
        if about.network == "peculiar":
            np.testing.assert_allclose(found, after, **tolerance)
        else:
            apart, moved = (np.linalg.norm(each - after) for each in (found, before))
            assert apart <= MOVED * moved + ROUNDING * np.linalg.norm(after)
    warm = read_json(trained / case / script.WARM.format(0))
    assert warm[-1] == ranks[0]["fractions"], "what it compiles has the rows that it trains"
    if len(ranks) == 2:
        assert_invariants(ranks, table, plan)


def assert_invariants(ranks: list[dict], table: pd.DataFrame, plan: dict) -> None:
    """Assert that both ranks have equal weights, and each the rows of its shard and no others."""
    assert ranks[0]["weights_sha256"] == ranks[1]["weights_sha256"]
    exchange = plan["knobs"]["dense_exchange"]
    for rank in ranks:
        # Of the peculiar network, the other layer that need not be summed has three outputs.
        found = [*rank["dense_exchange"].values()]
        assert exchange in found if exchange != "allreduce" else not found
        assert plan["workload"] != "peculiar" or found in ([], [exchange, "allreduce"])
    planned = plan_epochs(plan, ranks[0])
    assert invariant_fault(planned, ranks, table, script.TEST_ROWS) is None
    if 0 not in ranks[0]["fractions"]:
        knobs = plan["knobs"] | {"shard": "leading" if plan["knobs"]["shard"] is True else True}
        otherwise = plan_epochs(plan | {"knobs": knobs}, ranks[0])
        problem = invariant_fault(otherwise, ranks, table, script.TEST_ROWS)
        assert "did not train on the rows" in problem


def test_a_checkpoint_holds_whole_variables_and_a_resumed_run_is_bitwise_an_uninterrupted_one(
    trained,
):
    """Also of a layer that the ranks divide unevenly, with what its optimizer keeps."""
    (name,), whole = script.RESUMED, "momentum in shared memory"
    expected = arrays_of(trained / "keras" / "momentum" / "variables.npz")
    assert [each.shape for each in expected].count((75, 1601)) == 2, "with that of the optimizer"
    kept = [
        arrays_of(trained / each / f"checkpoint/epoch{script.EPOCHS}/variables.npz")
        for each in (whole, name)
    ]
    for one, other, by_keras in zip(*kept, expected, strict=True):
        np.testing.assert_allclose(one, by_keras, **TOLERANCE)
        np.testing.assert_array_equal(one, other)
    for one, other in zip(measured(trained, name)[0], measured(trained, whole)[0], strict=True):
        assert (one["resumed_after"], other["resumed_after"]) == ([1], [])
        assert one["weights_sha256"] == other["weights_sha256"]
        assert one["epochs"][-1]["loss"] == other["epochs"][-1]["loss"]


def test_steps_of_one_call_share_its_time(trained):
    """The last step of an epoch has fewer rows, and is a call of its own."""
    _, table, _ = measured(trained, TWO_STEPS)
    times = np.array(
        [epoch.sort_values("step")["step_seconds"] for _, epoch in table.groupby(["rank", "epoch"])]
    )
    first, second, last = times.T
    np.testing.assert_array_equal(first, second)
    # Two calls may take the same time once, but not always.
    assert (second != last).any()


def test_parts_of_a_step_are_refused_where_layers_normalise_over_all_ranks(trained):
    reason = (trained / script.REFUSED).read_text()
    assert "over all ranks, which needs accumulation: 1, not 2" in reason


def test_ranks_that_take_the_leading_rows_leave_half_of_the_rows_out(trained):
    ranks, _, plan = measured(trained, "leading")
    rows = plan["train_rows"]
    for number, expected in enumerate(plan_epochs(plan, ranks[0])):
        assert sum(rank["epochs"][number]["rows"] for rank in ranks) == expected.rows == rows
        assert expected.distinct == rows // 2
    assert [rank["evaluated"] for rank in ranks] == [[0, script.TEST_ROWS], [0, 0]]


@pytest.mark.parametrize(
    "case", ["horovod-mpi", pytest.param("caption-lstm", marks=pytest.mark.sweep)]
)
def test_clocks_have_a_moment_of_each_variable_and_parts_that_are_the_whole_step(trained, case):
    """Also of variables of one name, and of a functional model."""
    clocks, _ = attribution.moments(trained / case / "run.json", one_clock=False)
    tensors = clocks[clocks["tensor"] != ""]
    names = set(tensors["tensor"])
    assert len(names) == len(arrays_of(trained / case / "ranks" / "model.npz"))
    if case == "horovod-mpi":
        same = {name for name in names if name.endswith(".same/kernel")}
        assert same == {"7.same/kernel", "9.same/kernel"}
    by_step = tensors.groupby(["rank", "epoch", "step", "moment", "tensor"]).size()
    steps = 2 * 3 * script.EPOCHS
    assert (by_step == 1).all() and len(by_step) == steps * 3 * len(names)
    parts = attribution.per_step(clocks, None)
    assert len(parts) == steps
    assert (parts[["input", "dispatch", "compute", "optimiser"]] > 0).all(axis=None)
    columns = [*attribution.PARTS, attribution.OFF_CORE, attribution.UNEXPLAINED]
    together = parts[columns].sum(axis=1)
    pd.testing.assert_series_equal(together, parts["whole"], check_names=False, rtol=1e-6)


def test_rounded_gradients_train_otherwise_and_both_ranks_alike(trained):
    ranks, table, _ = measured(trained, "rounded")
    exact = read_json(trained / "keras" / "plain" / "losses.json")["steps"]
    np.testing.assert_allclose(mean_losses(table), exact, rtol=0.05)
    [one, other], [unrounded, _] = (
        [rank["weights_sha256"] for rank in each]
        for each in (ranks, measured(trained, "horovod-mpi")[0])
    )
    assert one == other != unrounded
