"""Three real ranks divide a layer unevenly, over Gloo, and train as Keras does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from escala.core.files import read_json
from escala.record import collect
from escala.record.invariants import plan_epochs, violated_invariant
from tests.workflow import exchange, sharding
from tests.workflow.real_ranks import mean_losses, ranks_of, started

#: Float32 sums taken in other orders, over six steps with momentum.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the ranks have trained every case."""
    folder = tmp_path_factory.mktemp("sharding")
    (folder / "data").mkdir()
    exchange.write_data(folder / "data")
    # Where three ranks sum tensors together, the order of a sum depends on which these are.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
        patch.setenv("ESCALA_PASS", "HOROVOD_FUSION_THRESHOLD")
        started(sharding.__file__, folder, ranks=sharding.RANKS, strategy=sharding.STRATEGY)
    return folder


def arrays_of(file: Path) -> list[np.ndarray]:
    with np.load(file) as kept:
        return [kept[name] for name in kept.files]


def checkpoint_of(trained: Path, case: str) -> list[np.ndarray]:
    """Return what the last checkpoint of a case holds."""
    return arrays_of(trained / case / f"checkpoint/epoch{exchange.EPOCHS}/variables.npz")


@pytest.mark.parametrize("case", sharding.CASES)
def test_losses_and_the_variables_of_a_checkpoint_are_those_of_keras(trained, case):
    """A checkpoint holds whole variables, also those that the ranks divide."""
    ranks, table = (
        read(trained / case / folder, sharding.RANKS)
        for read, folder in ((ranks_of, ""), (collect.read_steps, "ranks"))
    )
    np.testing.assert_allclose(
        mean_losses(table), read_json(trained / "keras/losses.json"), **TOLERANCE
    )
    expected = arrays_of(trained / "keras/variables.npz")
    shapes = [variable.shape for variable in expected]
    assert shapes.count((sharding.WIDE, sharding.WIDER)) == 2, "with that of the optimizer"
    model = arrays_of(trained / case / "ranks/model.npz")
    assert len(model) == 7, "an embedding, and kernel and bias of three layers"
    for kept in (checkpoint_of(trained, case), model):
        for one, other in zip(kept, expected, strict=kept is not model):
            np.testing.assert_allclose(one, other, **TOLERANCE)
    planned = plan_epochs(read_json(trained / case / "ranks/plan.json"), ranks[0])
    assert violated_invariant(planned, ranks, table, exchange.ROWS) is None
    for rank in ranks:
        assert rank["dense_exchange"] == {"wide": case, "large": case, "last": "allreduce"}


@pytest.mark.parametrize(("resumed", "case"), sharding.RESUMED.items())
def test_a_resumed_run_is_bitwise_an_uninterrupted_one(trained, resumed, case):
    for one, other in zip(
        *(ranks_of(trained / name, sharding.RANKS) for name in (resumed, case)), strict=True
    ):
        assert (one["resumed_after"], other["resumed_after"]) == ([1], [])
        assert one["weights_sha256"] == other["weights_sha256"]
        assert one["epochs"][-1]["loss"] == other["epochs"][-1]["loss"]
    for one, other in zip(*(checkpoint_of(trained, name) for name in (resumed, case)), strict=True):
        np.testing.assert_array_equal(one, other)
