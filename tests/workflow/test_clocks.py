"""Real steps split into parts, against what was done to them on purpose.

What other processes take from a step falls into any of its parts: what is claimed here of a single
step holds whatever they take, or is claimed of the step that they disturbed least.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from escala.analysis import attribution
from escala.analysis.cost_model.document import gradient_moments
from escala.core.files import read_json
from tests.calls import python
from tests.workflow.conftest import begin_with, measured

#: Two ranks of MPI that wait for each other on one core take its time.
pytestmark = pytest.mark.all_cores

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
def clocked(run_clocked) -> Callable[[str], Clocked]:
    """Return the one run under a strategy, with what was done to it."""
    made = {
        "single": lambda: run_clocked("single", "1x1", SLEEPING),
        "horovod-mpi": lambda: run_clocked("horovod-mpi", "1x2", SEVERAL_KERNELS, slowdown=[1, 8]),
        "mirrored": lambda: run_clocked("mirrored", "1x2"),
        "torch-single": lambda: run_clocked("torch-single", "1x1"),
        "ddp-gloo": lambda: run_clocked("ddp-gloo", "1x2", slowdown=[1, 4]),
    }
    return cache(lambda strategy: made[strategy]())


@pytest.mark.parametrize("strategy", ["single", "horovod-mpi"])
def test_little_of_a_step_is_unexplained(clocked, strategy):
    steps = clocked(strategy).steps
    # Alongside what was done to the step on purpose.
    fraction = steps["unexplained"] / (steps["whole"] - steps["input"] - steps["skew"])
    assert (fraction.groupby("rank").min() <= MOST_UNEXPLAINED).all()
    assert (fraction.groupby("rank").size() == STEPS).all()


def test_one_process_exchanges_nothing_and_a_sleep_while_rows_are_gathered_shows_as_input(clocked):
    run = clocked("single")
    seconds = run.parts(one_clock=True)["seconds"][0]
    assert (seconds[[*attribution.EXCHANGE, "negotiation", "skew", "overlap"]] == 0).all()
    assert (seconds[["input", "dispatch", "compute", "optimiser"]] > 0).all()
    assert (run.intervals["input"] >= SLEEP_SECONDS).all()
    assert len(run.steps.dropna()) >= STEPS - STEPS // 6
    # Nothing counts twice: the sleep is in no part but that one.
    assert_add_up(run.steps.dropna())


def assert_add_up(steps: pd.DataFrame) -> None:
    """Assert that the parts are the whole step."""
    parts = steps[[*attribution.PARTS, attribution.OFF_CORE, "unexplained"]].sum(axis=1)
    pd.testing.assert_series_equal(parts, steps["whole"], check_names=False, rtol=1e-6)


def test_an_exchange_shows_on_every_rank(clocked):
    parts = clocked("horovod-mpi").parts(one_clock=True)
    for rank, kind in ((0, "measured"), (1, "estimated")):
        rank_parts = parts.loc[rank]
        assert rank_parts.loc["transfer", "seconds"] + rank_parts.loc["overlap", "seconds"] > 0
        assert (rank_parts.loc[[*attribution.EXCHANGE, "negotiation"], "kind"] == kind).all()
        assert (rank_parts.loc[["skew", "compute"], "kind"] == "measured").all()


@pytest.mark.parametrize(
    "strategy", ["horovod-mpi", pytest.param("ddp-gloo", marks=pytest.mark.torch)]
)
def test_a_slow_rank_shows_as_skew_on_the_others(clocked, strategy):
    """Rank 1 computes several times as long, and rank 0 does nothing else meanwhile but wait."""
    run = clocked(strategy)
    late = run.last_ready[1] - run.last_ready[0]
    behind = late[late > 0]
    assert len(behind) > STEPS / 2
    skew = run.steps.loc[0].loc[behind.index, "skew"]
    # No update begins before the last sum, so none is made meanwhile.
    pd.testing.assert_series_equal(skew, behind, check_names=False, atol=1e-5)
    # A mean would have the one step in which another process holds up rank 0.
    medians = run.steps["skew"].groupby("rank").median()
    assert medians[1] < 0.1 * medians[0]
    if strategy == "ddp-gloo":
        assert (run.steps["transfer"] + run.steps["overlap"] > 0).all()
        backward = run.steps["backward"].groupby("rank").median()
        assert backward[1] > 1.3 * backward[0], run.steps["backward"].groupby("rank").describe()


def test_moments_of_ranks_of_several_kernels_are_not_set_against_each_other(clocked):
    run = clocked("horovod-mpi")
    assert not run.one_clock
    kinds = run.parts(run.one_clock)["kind"].unstack()
    own = ["input", "dispatch", "compute", "optimiser", attribution.OFF_CORE, "whole"]
    assert (kinds[own] == "measured").all(axis=None)
    assert (kinds.drop(columns=own) == "unavailable").all(axis=None)


@pytest.mark.sweep
def test_moments_inside_a_step_of_mirrored_ranks_are_unavailable(clocked):
    run = clocked("mirrored")
    parts = run.parts(run.one_clock).loc[0]
    assert set(parts.index[parts["kind"] == "measured"]) == {"input", "whole"}
    assert parts.loc["compute", ["kind", "seconds"]].isna().tolist() == [False, True]


@pytest.mark.torch
@pytest.mark.parametrize("strategy", ["torch-single", "ddp-gloo"])
def test_the_parts_of_pytorch_are_the_whole_step_and_all_are_measured(clocked, strategy):
    run = clocked(strategy)
    steps = run.steps
    assert (steps["unexplained"] <= MOST_BETWEEN_CALLS * steps["whole"]).all()
    assert (steps.groupby("rank").size() == STEPS).all()
    assert_add_up(steps)
    assert (steps[["input", "dispatch", "forward", "backward", "optimiser"]] > 0).all(axis=None)
    assert (run.parts(run.one_clock)["kind"] == "measured").all()
    if strategy == "torch-single":
        parts = [*attribution.EXCHANGE, "negotiation", "skew", "overlap"]
        assert (steps[parts] == 0).all(axis=None)


@pytest.mark.torch
def test_one_process_of_pytorch_tells_when_each_gradient_is_known(
    clocked, small_split, request_for, tmp_path
):
    """Those of the last layer come first, as in the buckets of several ranks."""
    request = request_for("torch-single", "1x1")
    file = tmp_path / "gradients.json"
    job = {"rule": "gradients", "workload": "virus-cnn", "strategy": "torch-single"}
    job |= {name: request[name] for name in ("training", "knobs")}
    files = {"input": {"split": f"{small_split}/dataset.json"}, "output": {"gradients": str(file)}}
    words = ["-m", "scripts.step", json.dumps(job), json.dumps(files)]
    python(*words, variables={"ESCALA_STORE": str(tmp_path / "store")}, check=True)
    described = read_json(file)
    names = [each["name"] for each in described]
    numbers = sum(int(np.prod(each["shape"])) for each in described)
    run = clocked("torch-single").file
    assert numbers == read_json(run)["training"]["parameters"]
    ready, update = gradient_moments(run)
    assert ready.keys() == {*names, "gradients"}
    assert 0 < ready[names[-1]] < ready[names[0]] <= ready["gradients"] == 1
    assert min(update) > 0
