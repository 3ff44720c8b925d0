"""The totals of an epoch, with steps that are made up."""

from __future__ import annotations

import csv
import io
from types import SimpleNamespace

import numpy as np
import pytest

from escala.core.errors import Diverged
from escala.core.load import Load
from escala.training import epoch
from escala.training.epoch import train_epoch

REQUEST = {
    "global_batch": 2,
    "shuffle_seed": 1,
    "max_steps": None,
    "knobs": {"shard": True, "weighting": "rows"},
    "training": {"epochs": 1},
}


class Data:
    """Six rows of one number."""

    def rows(self, side: str) -> int:
        return 6

    def gather(self, side: str, rows: np.ndarray) -> tuple:
        return np.ones((len(rows), 1), np.float32), np.zeros(len(rows), np.int64)


def epoch_of(losses: list, asynchronous: bool = False, join=lambda: None) -> dict:
    strategy = SimpleNamespace(
        driven_ranks=[0], total=lambda values: values, join=join, asynchronous=asynchronous
    )
    given = iter(losses)
    writer = csv.writer(io.StringIO())
    found, _ = train_epoch(
        1,
        {1: lambda parts: (next(given), 1.0)},
        Data(),
        REQUEST,
        strategy,
        np.ones(1),
        writer,
        None,
        Load(None),
    )
    return found


def test_the_loss_of_an_epoch_is_the_mean_over_its_rows():
    assert epoch_of([1.0, 2.0, 6.0])["loss"] == 1.5


@pytest.mark.parametrize("losses", [[1.0, float("inf"), 1.0], [1.0, 1.0, float("nan")]])
def test_a_loss_that_is_not_finite_ends_the_training_though_the_last_step_has_one(losses):
    with pytest.raises(Diverged, match="the loss is not finite in epoch 1"):
        epoch_of(losses)


class Scheduled:
    """The loss of a step that is scheduled; it waits for the workers."""

    joined = False

    def __float__(self) -> float:
        assert Scheduled.joined, "the timed steps waited for a loss"
        return 1.0


def test_progress_does_not_wait_for_the_steps_of_an_asynchronous_strategy(monkeypatch):
    monkeypatch.setattr(epoch, "PROGRESS_SECONDS", 0.0)

    def join() -> None:
        Scheduled.joined = True

    assert epoch_of([Scheduled() for _ in range(3)], asynchronous=True, join=join)["loss"] == 0.5
