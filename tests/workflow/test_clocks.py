"""Real steps split into parts, against what was done to them on purpose.

What other processes take from a step falls into any of its parts: what is claimed here of a single
step holds whatever they take, or is claimed of the step that they disturbed least.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from escala.analysis import attribution
from escala.analysis.cost_model.document import clocks_of, moments
from escala.core.files import read_json
from tests.workflow.conftest import begin_with, measured

STEPS = 24
# Of the quietest step.
MOST_UNEXPLAINED = 0.05
# Of every step of PyTorch: between two calls nothing is left out but the reading of the clock.
MOST_BETWEEN_CALLS = 0.03
SLEEP_SECONDS = 0.03
# What Python imports by itself at its start: every batch is handed out late; every process is told
# of another kernel.
SLEEPING = f"""
import time
from escala.training.shards import Shards

epoch_batches = Shards.epoch_batches

def slowly(*arguments):
    for rows in epoch_batches(*arguments):
        time.sleep({SLEEP_SECONDS})
        yield rows

Shards.epoch_batches = slowly
"""
SEVERAL_KERNELS = """
import os
from pathlib import Path

read_text = Path.read_text

def told(path, *arguments, **named):
    return str(os.getpid()) if path.name == "boot_id" else read_text(path, *arguments, **named)

Path.read_text = told
"""


class Clocked:
    """A run with clocks: the parts of every step of every rank, and their summary."""

    def __init__(self, file: Path, alone: bool):
        self.file, self.alone = file, alone
        self.one_clock = read_json(file)["ranks"]["one_clock"]
        clocks, phases = attribution.moments(file, one_clock=True)
        self.steps = attribution.per_step(clocks, phases)
        # With what others took of the cores within the parts from which it was taken.
        self.intervals = attribution.per_step(clocks.assign(queue_seconds=np.nan), phases)
        ready = clocks[clocks["moment"] == "gradient_ready"]
        self.last_ready = ready.groupby(["rank", "epoch", "step"])["seconds"].max()

    def parts(self, one_clock: bool) -> pd.DataFrame:
        parts = attribution.run_attribution(self.file, self.alone, one_clock)
        return parts.set_index(["rank", "part"])


@pytest.fixture(scope="module")
def run_clocked(small_split, request_for, tmp_path_factory) -> Callable[..., Clocked]:
    """Make a run under a strategy, whose processes begin with some code."""

    def run(strategy: str, layout: str, imported: str = "", **knobs: object) -> Clocked:
        folder = tmp_path_factory.mktemp(strategy)
        request = request_for(
            strategy,
            layout,
            instrument="clocks",
            epochs=STEPS // 6,
            batch={"rows": 32 // int(layout[-1]), "per": "rank"},
            knobs=knobs,
        )
        with pytest.MonkeyPatch.context() as patch:
            if imported:
                begin_with(imported, folder / "site", patch)
            measured(request, small_split, folder)
        return Clocked(folder / "run.json", strategy == "single")

    return run


@pytest.fixture(scope="module")
def clocked(run_clocked) -> dict[str, Clocked]:
    """One run under each strategy of TensorFlow, with what was done to it."""
    return {
        "single": run_clocked("single", "1x1", SLEEPING),
        "horovod-mpi": run_clocked("horovod-mpi", "1x2", SEVERAL_KERNELS, slowdown=[1, 8]),
        "mirrored": run_clocked("mirrored", "1x2"),
    }


@pytest.fixture(scope="module")
def torch_clocked(run_clocked) -> dict[str, Clocked]:
    """The same of PyTorch."""
    return {
        "torch-single": run_clocked("torch-single", "1x1"),
        "ddp-gloo": run_clocked("ddp-gloo", "1x2", slowdown=[1, 4]),
        "bare": run_clocked(
            "ddp-gloo", "1x2", slowdown=[1, 4], trained_module="bare", evaluation="whole"
        ),
    }


@pytest.mark.parametrize("strategy", ["single", "horovod-mpi"])
def test_little_of_a_step_is_unexplained(clocked, strategy):
    steps = clocked[strategy].steps
    # Alongside what was done to the step on purpose.
    fraction = steps["unexplained"] / (steps["whole"] - steps["input"] - steps["skew"])
    assert (fraction.groupby("rank").min() <= MOST_UNEXPLAINED).all()
    assert (fraction.groupby("rank").size() == STEPS).all()


def test_one_process_exchanges_nothing(clocked):
    seconds = clocked["single"].parts(one_clock=True)["seconds"][0]
    assert (seconds[[*attribution.EXCHANGE, "negotiation", "skew", "overlap"]] == 0).all()
    assert (seconds[["input", "dispatch", "compute", "optimiser"]] > 0).all()


def test_an_exchange_shows_on_every_rank(clocked):
    parts = clocked["horovod-mpi"].parts(one_clock=True)
    for rank, kind in ((0, "measured"), (1, "estimated")):
        rank_parts = parts.loc[rank]
        assert rank_parts.loc["transfer", "seconds"] + rank_parts.loc["overlap", "seconds"] > 0
        assert (rank_parts.loc[[*attribution.EXCHANGE, "negotiation"], "kind"] == kind).all()
        assert (rank_parts.loc[["skew", "compute"], "kind"] == "measured").all()


def test_a_slow_rank_shows_as_skew_on_the_others(clocked):
    """Rank 1 computes eight times as long, and rank 0 does nothing else meanwhile but wait."""
    run = clocked["horovod-mpi"]
    late = run.last_ready[1] - run.last_ready[0]
    behind = late[late > 0]
    assert len(behind) > STEPS / 2
    skew = run.steps.loc[0].loc[behind.index, "skew"]
    # No update begins before the last sum, so none is made meanwhile.
    pd.testing.assert_series_equal(skew, behind, check_names=False, atol=1e-5)
    # A mean would have the one step in which another process holds up rank 0.
    medians = run.steps["skew"].groupby("rank").median()
    assert medians[1] < 0.1 * medians[0]


def test_a_sleep_while_rows_are_gathered_shows_as_input(clocked):
    assert (clocked["single"].intervals["input"] >= SLEEP_SECONDS).all()
    steps = clocked["single"].steps.dropna()
    assert len(steps) >= STEPS - STEPS // 6
    # Nothing counts twice: the parts are the whole step, and the sleep is in none but that one.
    parts = steps[[*attribution.PARTS, attribution.OFF_CORE, "unexplained"]].sum(axis=1)
    pd.testing.assert_series_equal(parts, steps["whole"], check_names=False, rtol=1e-6)


def test_ranks_of_several_kernels_are_not_set_against_each_other(clocked):
    run = clocked["horovod-mpi"]
    assert not run.one_clock
    kinds = run.parts(run.one_clock)["kind"].unstack()
    own = ["input", "dispatch", "compute", "optimiser", attribution.OFF_CORE, "whole"]
    assert (kinds[own] == "measured").all(axis=None)
    assert (kinds.drop(columns=own) == "unavailable").all(axis=None)


def test_moments_inside_a_step_are_unavailable_where_no_process_can_read_them(clocked):
    run = clocked["mirrored"]
    parts = run.parts(run.one_clock).loc[0]
    measured = parts.index[parts["kind"] == "measured"]
    assert set(measured) == {"input", "whole"}
    assert parts.loc["compute", ["kind", "seconds"]].isna().tolist() == [False, True]


@pytest.mark.torch
@pytest.mark.parametrize("strategy", ["torch-single", "ddp-gloo", "bare"])
def test_the_parts_of_pytorch_are_the_whole_step_and_all_are_measured(torch_clocked, strategy):
    run = torch_clocked[strategy]
    steps = run.steps
    assert (steps["unexplained"] <= MOST_BETWEEN_CALLS * steps["whole"]).all()
    assert (steps.groupby("rank").size() == STEPS).all()
    parts = steps[[*attribution.PARTS, attribution.OFF_CORE, "unexplained"]].sum(axis=1)
    pd.testing.assert_series_equal(parts, steps["whole"], check_names=False, rtol=1e-6)
    assert (steps[["input", "dispatch", "forward", "backward", "optimiser"]] > 0).all(axis=None)
    assert (run.parts(run.one_clock)["kind"] == "measured").all()


@pytest.mark.torch
@pytest.mark.parametrize("run", ["torch-single", "bare"])
def test_one_process_of_pytorch_and_ranks_that_train_alone_exchange_nothing(torch_clocked, run):
    parts = [*attribution.EXCHANGE, "negotiation", "skew", "overlap"]
    assert (torch_clocked[run].steps[parts] == 0).all(axis=None)


@pytest.mark.torch
def test_one_process_of_pytorch_tells_when_each_gradient_is_known(
    torch_clocked, small_split, request_for, tmp_path
):
    """Those of the last layer come first, as in the buckets of several ranks."""
    request = request_for("torch-single", "1x1")
    file = tmp_path / "gradients.json"
    job = {"rule": "gradients", "workload": "virus-cnn", "strategy": "torch-single"}
    job |= {name: request[name] for name in ("training", "knobs")}
    files = {"input": {"split": f"{small_split}/dataset.json"}, "output": {"gradients": str(file)}}
    command = [sys.executable, "-m", "scripts.step", json.dumps(job), json.dumps(files)]
    subprocess.run(command, env=os.environ | {"ESCALA_STORE": str(tmp_path / "store")}, check=True)
    described = read_json(file)
    names = [each["name"] for each in described]
    numbers = sum(int(np.prod(each["shape"])) for each in described)
    run = read_json(torch_clocked["torch-single"].file)
    assert numbers == run["training"]["parameters"]
    ready, update = moments(clocks_of(torch_clocked["torch-single"].file))
    assert ready.keys() == {*names, "gradients"}
    assert 0 < ready[names[-1]] < ready[names[0]] <= ready["gradients"] == 1
    assert min(update) > 0


@pytest.mark.torch
def test_each_rank_of_pytorch_sees_its_exchange_and_waits_for_the_slow_one(torch_clocked):
    """Rank 1 takes four times as long, and rank 0 does nothing else meanwhile but wait."""
    run = torch_clocked["ddp-gloo"]
    assert (run.steps["transfer"] + run.steps["overlap"] > 0).all()
    late = run.last_ready[1] - run.last_ready[0]
    behind = late[late > 0]
    assert len(behind) > STEPS / 2
    skew = run.steps.loc[0].loc[behind.index, "skew"]
    pd.testing.assert_series_equal(skew, behind, check_names=False, atol=1e-5)
    medians = run.steps["skew"].groupby("rank").median()
    assert medians[1] < 0.1 * medians[0]
    backward = run.steps["backward"].groupby("rank").median()
    assert backward[1] > 1.3 * backward[0], run.steps["backward"].groupby("rank").describe()
