"""Three real ranks divide a layer unevenly, over Gloo, and train as Keras does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from escala.core.files import read_json
from escala.record import steps
from escala.record.invariants import broken_promise, planned_epochs
from tests.workflow import exchange, sharding
from tests.workflow.real_ranks import ranks_of, started

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


def kept_by(trained: Path, case: str) -> list[np.ndarray]:
    """Return what the last checkpoint of a case holds."""
    kept = np.load(trained / case / f"checkpoint/epoch{exchange.EPOCHS}/variables.npz")
    return [kept[name] for name in kept.files]


@pytest.mark.parametrize("case", sharding.CASES)
def test_losses_weights_and_the_optimizers_variables_are_those_of_keras(trained, case):
    """A checkpoint holds whole variables, also those that the ranks divide."""
    losses = steps.loss_per_step(steps.read(trained / case / "ranks", sharding.RANKS))["loss"]
    expected = read_json(trained / "keras" / "losses.json")
    np.testing.assert_allclose(losses, expected, **TOLERANCE)
    reference = np.load(trained / "keras" / "variables.npz")
    variables = [reference[name] for name in reference.files]
    shapes = [variable.shape for variable in variables]
    assert shapes.count((sharding.WIDE, sharding.WIDER)) == 2
    for one, other in zip(kept_by(trained, case), variables, strict=True):
        np.testing.assert_allclose(one, other, **TOLERANCE)
    model = np.load(trained / case / "ranks" / "model.npz")
    assert len(model.files) == 7, "an embedding, and kernel and bias of three layers"
    for one, other in zip((model[name] for name in model.files), variables[:7], strict=True):
        np.testing.assert_allclose(one, other, **TOLERANCE)


@pytest.mark.parametrize("case", sharding.CASES)
def test_all_ranks_hold_the_same_weights_after_the_rows_of_their_shards(trained, case):
    ranks, plan = (
        ranks_of(trained / case, sharding.RANKS),
        read_json(trained / case / "ranks/plan.json"),
    )
    table = steps.read(trained / case / "ranks", sharding.RANKS)
    assert broken_promise(planned_epochs(plan, ranks[0]), ranks, table, exchange.ROWS) is None


@pytest.mark.parametrize("case", sharding.CASES)
def test_the_exchange_of_each_layer_is_recorded(trained, case):
    for rank in ranks_of(trained / case, sharding.RANKS):
        assert rank["dense_exchange"] == {
            "wide": case,
            "large": case,
            "last": "allreduce",
        }


@pytest.mark.parametrize(("resumed", "case"), sharding.RESUMED.items())
def test_a_resumed_run_is_bitwise_an_uninterrupted_one(trained, resumed, case):
    for one, other in zip(
        ranks_of(trained / resumed, sharding.RANKS),
        ranks_of(trained / case, sharding.RANKS),
        strict=True,
    ):
        assert (one["resumed_after"], other["resumed_after"]) == ([1], [])
        assert one["weights_sha256"] == other["weights_sha256"]
        last = [rank["epochs"][-1]["loss"] for rank in (one, other)]
        assert last[0] == last[1]
    for one, other in zip(kept_by(trained, resumed), kept_by(trained, case), strict=True):
        np.testing.assert_array_equal(one, other)
