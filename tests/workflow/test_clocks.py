"""Real steps split into parts, against what was done to them on purpose."""

from __future__ import annotations

import os

import pandas as pd
import pytest

from escala.explain import attribution
from escala.files import read_json
from escala.measure.run import measure
from tests.conftest import ROOT

STEPS = 24
# Of a quiet step on this machine; what other processes take from it falls into every part.
MOST_UNEXPLAINED = 0.05
SLEEP_SECONDS = 0.03
# What Python imports by itself at its start: every batch is handed out late; every process is told
# of another kernel.
SLEEPING = f"""
import time
from escala.parallel.shards import Shards

of_epoch = Shards.of_epoch

def slowly(*arguments):
    for rows in of_epoch(*arguments):
        time.sleep({SLEEP_SECONDS})
        yield rows

Shards.of_epoch = slowly
"""
SEVERAL_KERNELS = """
import os
from pathlib import Path

read_text = Path.read_text

def told(path, *arguments):
    return str(os.getpid()) if path.name == "boot_id" else read_text(path, *arguments)

Path.read_text = told
"""


@pytest.fixture(scope="module")
def attributed(small_split, request_for, tmp_path_factory):
    """Return a function that runs with clocks and gives the parts of every rank, in seconds."""

    def run(strategy: str, layout: str, **knobs: object) -> pd.DataFrame:
        folder = tmp_path_factory.mktemp(strategy)
        request = request_for(
            strategy,
            layout,
            instrument="clocks",
            epochs=STEPS // 6,
            batch={"rows": 32 // int(layout[-1]), "per": "rank"},
            knobs=knobs,
        )
        outcome = measure(request, small_split, folder / "run.json", time_limit_seconds=300)
        assert outcome.status == "ok", outcome.reason
        one_clock = read_json(folder / "run.json")["ranks"]["one_clock"]
        parts = attribution.of_run(folder / "run.json", strategy == "single", one_clock)
        return parts.set_index(["rank", "part"])

    return run


@pytest.fixture(scope="module")
def plain(attributed) -> dict[str, pd.DataFrame]:
    layouts = {"single": "1x1", "horovod-mpi": "1x2", "horovod-gloo": "1x2"}
    return {strategy: attributed(strategy, layout) for strategy, layout in layouts.items()}


@pytest.mark.parametrize("strategy", ["single", "horovod-mpi", "horovod-gloo"])
def test_little_of_a_step_is_unexplained(plain, strategy):
    parts = plain[strategy]
    assert (parts.xs("unexplained", level="part")["share"] <= MOST_UNEXPLAINED).all()
    assert (parts["steps"] == STEPS).all()


def test_one_process_exchanges_nothing(plain):
    seconds = plain["single"]["median_seconds"][0]
    assert (seconds[[*attribution.EXCHANGE, "negotiation", "skew", "overlap"]] == 0).all()
    assert (seconds[["input", "dispatch", "compute", "optimiser"]] > 0).all()


@pytest.mark.parametrize("strategy", ["horovod-mpi", "horovod-gloo"])
def test_an_exchange_shows_on_every_rank(plain, strategy):
    parts = plain[strategy]
    for rank, kind in ((0, "measured"), (1, "estimated")):
        of_rank = parts.loc[rank]
        assert (
            of_rank.loc["transfer", "median_seconds"] + of_rank.loc["overlap", "median_seconds"] > 0
        )
        assert (of_rank.loc[[*attribution.EXCHANGE, "negotiation"], "kind"] == kind).all()
        assert (of_rank.loc[["skew", "compute"], "kind"] == "measured").all()


def test_a_slow_rank_shows_as_skew_on_the_others(attributed):
    """Rank 1 computes eight times as long; what other processes delay is small beside that."""
    parts = attributed("horovod-mpi", "1x2", slowdown=[1, 8])["median_seconds"]
    delay = parts[1, "compute"] - parts[0, "compute"]
    assert parts[0, "skew"] == pytest.approx(delay, rel=0.2)
    assert parts[1, "skew"] < 0.1 * parts[0, "skew"]


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Return a function that lets every Python process import a module first."""

    def write(module: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(module)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))

    return write


def test_a_sleep_while_rows_are_gathered_shows_as_input(attributed, imported):
    imported(SLEEPING)
    parts = attributed("single", "1x1")["median_seconds"][0]
    assert parts["input"] >= SLEEP_SECONDS
    others = [part for part in attribution.PARTS if part != "input"]
    assert parts["whole"] - parts["input"] == pytest.approx(parts[others].sum(), rel=0.2)


def test_ranks_of_several_kernels_are_not_set_against_each_other(attributed, imported):
    imported(SEVERAL_KERNELS)
    kinds = attributed("horovod-mpi", "1x2")["kind"].unstack()
    own = ["input", "dispatch", "compute", "optimiser", "whole"]
    assert (kinds[own] == "measured").all(axis=None)
    assert (kinds.drop(columns=own) == "unavailable").all(axis=None)


def test_moments_inside_a_step_are_unavailable_where_no_process_can_read_them(attributed):
    parts = attributed("mirrored", "1x2").loc[0]
    measured = parts.index[parts["kind"] == "measured"]
    assert set(measured) == {"input", "whole"}
    assert parts.loc["compute", ["kind", "median_seconds"]].isna().tolist() == [False, True]
