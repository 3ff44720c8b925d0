"""Two real ranks train a model that an exchange can go wrong with, as Keras trains it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from escala.core.files import read_json
from escala.record import steps
from escala.runtime import launch
from escala.runtime.layout import Layout
from escala.runtime.placement import places
from escala.strategies import STRATEGIES
from tests.conftest import KNOBS, ROOT
from tests.workflow import exchange

#: Float32 sums taken in other orders, over six steps of plain gradient descent.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which both ranks have trained every case."""
    folder = tmp_path_factory.mktemp("exchange")
    (folder / "data").mkdir()
    exchange.write_data(folder / "data")
    strategy, knobs = STRATEGIES["horovod-mpi"], KNOBS | {"threads": {"intra_op": 1}}
    layout = Layout.parse("1x2")
    started = launch.survey(layout, strategy, None, "auto")
    environment = launch.environment(strategy.name, knobs, started)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, exchange.__file__, str(folder)]
    at = places(layout, strategy, knobs, started.nodes)
    with launch.command_line(started, strategy, at, command) as (arguments, added):
        done = subprocess.run(
            arguments, env=environment | added, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("case", [*exchange.CASES, *exchange.ALONE])
def test_weights_and_losses_are_those_of_keras(trained, case):
    """With layers of one name, and the regularisers counted once a step, however it is shared."""
    ranks = 2 if case in exchange.CASES else 1
    table = steps.read(trained / case / "ranks", ranks)
    losses = steps.loss_per_step(table)["loss"]
    np.testing.assert_allclose(losses, read_json(trained / "losses.json"), **TOLERANCE)
    found, expected = (np.load(f / "model.npz") for f in (trained / case / "ranks", trained))
    assert found.files == expected.files
    for name in expected.files:
        np.testing.assert_allclose(found[name], expected[name], **TOLERANCE)


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
    losses = steps.loss_per_step(steps.read(trained / case / "ranks", 2))["loss"]
    np.testing.assert_allclose(losses, read_json(trained / "losses.json"), rtol=0.05)
    found, exact = (
        read_json(trained / name / "ranks" / "rank0.json")["weights_sha256"]
        for name in (case, "horovod-mpi")
    )
    assert found != exact


@pytest.mark.parametrize("case", [*exchange.CASES, *exchange.ROUNDED])
def test_both_ranks_hold_these_weights(trained, case):
    ranks = [read_json(trained / case / "ranks" / f"rank{r}.json") for r in (0, 1)]
    assert ranks[0]["weights_sha256"] == ranks[1]["weights_sha256"]
