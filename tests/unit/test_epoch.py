"""The totals of an epoch, with steps that are made up."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from escala.core.errors import Diverged
from escala.core.load import Load
from escala.engines.base import Engine, MadeStep
from escala.training import epoch
from escala.training.epoch import train_epoch

PLAN = {
    "global_batch": 2,
    "train_rows": 6,
    "seed": 1,
    "max_steps": None,
    "strategy": "ddp-single",
    "weighting": "rows",
    "knobs": {"shard": True},
    "training": {"epochs": 1},
}


class Data:
    """Six rows of one number."""

    def rows(self, side: str) -> int:
        return 6

    def gather(self, side: str, rows: np.ndarray) -> tuple:
        return np.ones((len(rows), 1), np.float32), np.zeros(len(rows), np.int64)


class Steps:
    """An engine of one rank whose steps have the losses that it is given."""

    recorder, place = None, SimpleNamespace(ranks=[0])

    def __init__(self, losses: list, join: Callable[[], None]):
        self._losses, self._join = iter(losses), join
        self.group = SimpleNamespace(total=lambda values: values, meet=lambda: None)

    def make_steps(self, steps: Iterable, gather: Callable) -> Iterator[MadeStep]:
        yield from Engine.make_steps(self, steps, gather)
        self._join()

    def step(self, inputs: tuple) -> tuple:
        return next(self._losses), 1.0


def epoch_of(losses: list, join: Callable[[], None] = lambda: None) -> dict:
    writer, engine = csv.writer(io.StringIO()), Steps(losses, join)
    found, _ = train_epoch(1, engine, Data(), PLAN, np.ones(1), writer, Load(None))
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

    assert epoch_of([Scheduled() for _ in range(3)], join=join)["loss"] == 0.5
