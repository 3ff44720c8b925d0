"""A checkpoint is gone on from only while it is whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from escala.training.checkpoint import FOLDER, Checkpoint, latest


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a run of two processes that was kept after epochs 2 and 4."""
    for epoch in (2, 4):
        for process in (1, 0):
            steps = tmp_path / f"rank{process}.steps.csv"
            steps.write_text(f"{epoch} of {process}\n")
            kept = Checkpoint(tmp_path / FOLDER, 2, "mine", process)
            values = [np.array([epoch, 1.5]), np.array([2.5])]
            best = [np.full(2, epoch - 1)]
            state = {"epochs": [epoch] * process}
            kept.keep(epoch, values, best, state, steps, lambda: None)
    return tmp_path


def test_the_last_checkpoint_gives_back_what_it_was_given(run):
    assert latest(run) == latest(run, "mine") == 4
    assert latest(run, "another") is None
    steps = run / "rank1.steps.csv"
    steps.write_text("later\n")
    kept = Checkpoint(run / FOLDER, 2, "mine", 1)
    values, state = kept.restore(4, steps)
    assert [values.tolist() for values in kept.best(4)] == [[3, 3]]
    assert state == {"epochs": [4]}
    assert [value.tolist() for value in values] == [[4, 1.5], [2.5]]
    assert steps.read_text() == "4 of 1\n"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def list_instead(path: Path) -> None:
    path.write_text("[4]")


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("latest.json", empty),
        ("latest.json", cut),
        ("latest.json", list_instead),
        ("latest.json", Path.unlink),
        ("epoch4/variables.npz", cut),
        ("epoch4/best.npz", cut),
        ("epoch4/variables.npz", Path.unlink),
        ("epoch4/rank1.json", empty),
        ("epoch4/rank1.json", Path.unlink),
        ("epoch4/rank0.steps.csv", cut),
    ],
)
def test_a_damaged_checkpoint_is_none(run, file: str, damage: Callable):
    damage(run / FOLDER / file)
    assert latest(run) is None


def test_what_a_killed_process_left_half_written_is_no_part_of_it(run):
    (run / FOLDER / "epoch6" / ".variables.npz.x1").mkdir(parents=True)
    steps = run / "rank0.steps.csv"
    Checkpoint(run / FOLDER, 2, "mine", 0).keep(6, [np.array([1])], None, {}, steps, lambda: None)
    assert latest(run) == 6


def test_checkpoints_are_due_as_often_as_asked_for_and_after_the_last_epoch_too(tmp_path):
    often = [Checkpoint(tmp_path, every, "mine", 0) for every in (None, 1, 2)]
    due = [[each.due(epoch) for epoch in (1, 2, 3, 4)] for each in often]
    assert due == [[False] * 4, [True] * 4, [False, True, False, True]]
