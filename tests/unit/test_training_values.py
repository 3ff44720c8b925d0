"""Training by steps: shards, epochs, stopping, checkpoints, scores, and what ranks promise."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.core.errors import Diverged
from escala.core.load import Load
from escala.engines.base import Engine, MadeStep
from escala.record import collect
from escala.record.collect import MOST_CLASSES, evaluate
from escala.record.invariants import plan_epochs
from escala.training import epoch as epochs
from escala.training.checkpoint import FOLDER, Checkpoint, count_bytes, latest
from escala.training.epoch import train_epoch
from escala.training.shards import (
    Shards,
    balance_fractions,
    epoch_order,
    evaluation_rows,
    row_moments,
    split_rows,
    total_moments,
)
from escala.training.train import MONITORED, EarlyStopping

ROWS, EPOCHS = 21, 3


@pytest.mark.parametrize(
    ("shard", "fractions", "steps"),
    [
        (True, [0.5, 0.5], 99),
        (True, [0.75, 0.25, 0.0], 2),
        (False, [0.5, 0.5], 2),
        (False, [0.75, 0.25, 0.0], 99),
        ("leading", [1.0], 2),
        ("leading", [0.5, 0.5], 99),
    ],
)
def test_planned_epochs_hold_the_rows_of_all_steps(shard, fractions, steps):
    plan = {"seed": 5, "train_rows": ROWS, "global_batch": 8, "knobs": {"shard": shard}}
    found = plan_epochs(plan, {"fractions": fractions, "epochs": [{"steps": steps}] * EPOCHS})
    assert len(found) == EPOCHS
    for number, epoch in enumerate(found, start=1):
        planned_steps = list(Shards.of_plan(plan, fractions).epoch_batches(number))[:steps]
        taken = [int(row) for step in planned_steps for rows in step for row in rows]
        assert (epoch.rows, epoch.distinct) == (len(taken), len(set(taken)))
        assert epoch.moments == [sum(taken), sum(row**2 for row in taken)]
    if shard is True and steps > ROWS:
        assert {(epoch.rows, epoch.distinct) for epoch in found} == {(ROWS, ROWS)}


def test_a_fit_takes_every_row_once():
    rank = {"fractions": [1.0], "epochs": [{"steps": 1}]}
    plan = {"seed": None, "train_rows": ROWS, "global_batch": ROWS, "knobs": {"shard": True}}
    [epoch] = plan_epochs(plan, rank)
    assert (epoch.rows, epoch.distinct) == (ROWS, ROWS)


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
    # Nothing of the epochs before is left.
    files = [run / FOLDER / "latest.json", *(run / FOLDER / "epoch4").iterdir()]
    assert count_bytes(run) == sum(len(file.read_bytes()) for file in files)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("latest.json", lambda path: path.write_bytes(b"")),
        ("latest.json", cut),
        ("latest.json", lambda path: path.write_text("[4]")),
        ("latest.json", Path.unlink),
        ("epoch4/variables.npz", cut),
        ("epoch4/best.npz", cut),
        ("epoch4/variables.npz", Path.unlink),
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
    due = [[each.is_due(epoch) for epoch in (1, 2, 3, 4)] for each in often]
    assert due == [[False] * 4, [True] * 4, [False, True, False, True]]


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


def test_progress_does_not_wait_for_the_steps_of_an_asynchronous_strategy(monkeypatch):
    monkeypatch.setattr(epochs, "PROGRESS_SECONDS", 0.0)
    joined = []

    class Scheduled:
        def __float__(self) -> float:
            assert joined, "the timed steps waited for a loss"
            return 1.0

    assert epoch_of([Scheduled() for _ in range(3)], lambda: joined.append(1))["loss"] == 0.5


def by_keras(losses: list[float], patience: int, min_delta: float) -> tuple[int, list[int]]:
    """Return the epochs that Keras trains, and the weights of the best of them: its number."""
    callback = tf.keras.callbacks.EarlyStopping(
        "loss", min_delta, patience, mode="min", restore_best_weights=True
    )
    number = 0
    model = SimpleNamespace(stop_training=False, set_weights=lambda weights: None)
    model.get_weights = lambda: [number]
    callback.set_model(model)
    callback.on_train_begin()
    for number, loss in enumerate(losses, start=1):
        callback.on_epoch_end(number - 1, {"loss": loss})
        if model.stop_training:
            break
    return number, callback.best_weights


losses = st.lists(st.integers(0, 8).map(lambda n: n / 4), min_size=1, max_size=12)


@settings(max_examples=200)
@given(
    losses,
    st.integers(0, 12),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.25, 0.6]),
    st.sampled_from([*MONITORED]),
    st.booleans(),
)
def test_it_stops_where_keras_does_and_keeps_the_same_weights_also_if_resumed(
    values, done, patience, min_delta, monitor, restore
):
    asked = {"monitor": monitor, "patience": patience, "min_delta": min_delta}
    ours = EarlyStopping(asked | {"restore_best": restore})
    epochs = [
        dict.fromkeys(MONITORED.values(), math.nan) | {"epoch": number, MONITORED[monitor]: loss}
        for number, loss in enumerate(values, start=1)
    ]
    last, best = by_keras(values, patience, min_delta)
    done, reads = min(done, last - 1), []
    kept = by_keras(values[:done], patience, min_delta)[1] if done else None
    ours.resume(epochs[:done], lambda: reads.append(kept) or kept)
    assert len(reads) == (restore and done > 0)
    for epoch in epochs[done:]:
        if ours.see(epoch, lambda epoch=epoch: reads.append(epoch) or [epoch["epoch"]]):
            break
    assert (epoch["epoch"], ours.best_epoch) == (last, best[0])
    assert ours.best_weights == (best if restore else None) and bool(reads) == restore


def test_without_early_stopping_nothing_is_kept():
    ours = EarlyStopping(None)
    assert not ours.see({"epoch": 1, "loss": 1.0}, lambda: pytest.fail("weights were read"))
    assert ours.best_weights is None


rows = st.integers(0, 200)


@given(rows, st.integers(1, 64), st.integers(1, 9), st.integers(0, 2**31 - 1))
def test_ranks_share_every_step_of_one_rank(rows, global_batch, ranks, seed):
    order = epoch_order(rows, seed, 1)
    alone = [order[start : start + global_batch].tolist() for start in range(0, rows, global_batch)]
    shards = Shards(seed, rows, global_batch, [1 / ranks] * ranks)
    steps = [[part.tolist() for part in step] for step in shards.epoch_batches(1)]
    assert [[row for part in step for row in part] for step in steps] == alone
    assert len(steps) == shards.steps(None) == math.ceil(rows / global_batch)
    for step, expected in zip(steps, alone, strict=True):
        assert step == [part.tolist() for part in np.array_split(expected, ranks)]


def test_the_moments_of_all_ranks_are_those_of_their_rows_beyond_64_bits():
    """Eight rows near 2^31 have squares whose sum exceeds 2^64."""
    order = np.arange(2**31 - 8, 2**31)
    squares = sum(int(row) ** 2 for row in order)
    assert squares > 2**64
    assert row_moments(order) == [int(order.sum()), squares % 2**64]
    parts = [row_moments(part) for part in np.split(order, [4])]
    assert sum(second for _, second in parts) != squares % 2**64
    assert total_moments(parts) == row_moments(order)


@given(st.integers(0, 500), st.lists(st.floats(0.01, 1), min_size=1, max_size=8))
def test_parts_are_within_one_row_of_what_the_fractions_say(rows, weights):
    fractions = np.array(weights) / sum(weights)
    found = split_rows(rows, fractions)
    assert found.sum() == rows
    assert (np.abs(found - rows * fractions) < 1 + 1e-6).all()


@given(st.integers(1, 100), st.integers(3, 40), st.integers(2, 3), st.floats(0.1, 0.9))
def test_without_shards_every_rank_takes_every_row_in_an_order_of_its_own(
    rows, batch, ranks, fraction
):
    fractions = [fraction, *[(1 - fraction) / (ranks - 1)] * (ranks - 1)]
    shards = Shards(7, rows, batch, fractions, shard=False)
    sizes, steps = split_rows(batch, fractions), list(shards.epoch_batches(1))
    assert len(steps) == shards.steps(None) == math.ceil(rows / min(sizes[sizes > 0]))
    assert any(map(len, steps[-1]))
    taken = [np.concatenate([step[rank] for step in steps]).tolist() for rank in range(ranks)]
    for rank_rows, size in zip(taken, sizes, strict=True):
        assert sorted(rank_rows) == list(range(rows if size else 0))
    if rows > 20:
        assert len({tuple(rank_rows) for rank_rows in taken if rank_rows}) == sum(sizes > 0)


@given(rows, st.integers(1, 64), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_leading_ranks_take_the_first_rows_of_each_step(rows, batch, weights):
    fractions = np.array(weights) / sum(weights)
    divided, found = (Shards(3, rows, batch, fractions, shard) for shard in (True, "leading"))
    assert found.steps(None) == divided.steps(None)
    order = epoch_order(rows, 3, 2).tolist()
    steps = list(found.epoch_batches(2))
    for number, (rank_rows, instead_of) in enumerate(
        zip(steps, divided.epoch_batches(2), strict=True)
    ):
        for taken, own in zip(rank_rows, instead_of, strict=True):
            start = number * batch
            assert taken.tolist() == order[start : start + len(own)]


@given(
    st.lists(st.tuples(st.floats(0, 0.01), st.floats(1e-4, 1e-2)), min_size=1, max_size=6),
    st.integers(64, 512),
)
def test_fractions_by_speed_let_all_ranks_end_together(ranks, batch):
    """Against the definition: steps of a + b n seconds, and no rank works longer than another."""
    fixed, slope = np.array(ranks).T
    sizes = (8, 32)
    seconds = np.stack([fixed + slope * size for size in sizes], axis=1)
    fractions = balance_fractions(sizes, seconds, batch)
    assert fractions.sum() == pytest.approx(1) and (fractions >= 0).all()
    ends = (fixed + slope * fractions * batch)[fractions > 0]
    assert ends == pytest.approx(ends[0], rel=1e-3)
    assert (fixed[fractions == 0] >= ends[0] * (1 - 1e-3)).all()


def test_an_epochs_order_is_a_permutation_decided_by_seed_and_epoch():
    orders = [epoch_order(50, seed, epoch).tolist() for seed in range(4) for epoch in range(4)]
    assert orders[5] == epoch_order(50, 1, 1).tolist() and len({*map(tuple, orders)}) == 16
    assert all(sorted(order) == list(range(50)) for order in orders)


@given(rows, st.integers(1, 9), st.booleans())
def test_every_test_row_is_evaluated_once(rows, ranks, divided):
    parts = [list(range(rows))[evaluation_rows(rows, n, ranks, divided)] for n in range(ranks)]
    assert [row for part in parts for row in part] == list(range(rows))
    lengths = [*map(len, parts)]
    assert max(lengths) - min(lengths) <= 1 if divided else lengths[0] == rows


COLUMNS = ["epoch", "step", "rows", "input_seconds", "step_seconds", "loss_sum", "correct"]


TABLE_ROWS = [
    [(1, 1, 4, 0.1, 0.2, 2.0, 3), (1, 2, 4, 0.0, 0.4, 4.0, 3), (2, 1, 4, 0.1, 0.4, 1.0, 3)],
    [(1, 1, 2, 0.0, 0.5, 1.0, 1), (1, 2, 0, 0.1, 0.1, 0.0, 0), (2, 1, 2, 0.1, 0.2, 2.0, 1)],
]


def test_a_step_lasts_as_long_as_its_slowest_rank(tmp_path):
    for rank, rows in enumerate(TABLE_ROWS):
        file = tmp_path / f"rank{rank}.steps.csv"
        pd.DataFrame(rows, columns=COLUMNS).to_csv(file, index=False)
    with pytest.raises(FileNotFoundError):
        collect.read_steps(tmp_path, 3)
    table = collect.read_steps(tmp_path, 2)
    assert table["rank"].tolist() == [0, 0, 0, 1, 1, 1]
    found = collect.summarize_steps(table.sample(frac=1, random_state=1))
    # The slowest rank takes 0.5, 0.4 and 0.5 s.
    assert found["count"] == 3
    assert (found["median"], found["p90"]) == (pytest.approx(0.5), pytest.approx(0.5))
    assert [entry["rank"] for entry in found["per_rank"]] == [0, 1]
    medians = [entry["median"] for entry in found["per_rank"]]
    assert medians == [pytest.approx(0.4), pytest.approx(0.3)]
    assert found["per_rank"][0]["p90"] == pytest.approx(0.48)


CLASSES = ["COVID", "DENGUE", "EBOLA"]


def scored(matches: list[tuple[int, int]], classes: list[str] = CLASSES) -> dict:
    labels, predictions = np.array(matches).T
    return evaluate(labels, predictions, classes)


def test_scores_are_those_of_the_definitions(recwarn):
    """The last class is never predicted."""
    found = scored([(0, 0), (0, 0), (0, 1), (1, 1), (2, 0)])
    assert found["confusion_matrix"] == [[2, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert (found["rows"], found["accuracy"]) == (5, pytest.approx(0.6))
    # Precision, recall, F1 and support of each class.
    for name, scores in zip(
        CLASSES, [(2 / 3, 2 / 3, 2 / 3, 3), (1 / 2, 1, 2 / 3, 1), (0, 0, 0, 1)], strict=True
    ):
        assert list(found["per_class"][name].values()) == pytest.approx(scores)
    assert list(found["macro"].values()) == pytest.approx([7 / 18, 5 / 9, 4 / 9, 5])
    assert list(found["weighted"].values()) == pytest.approx([0.5, 0.6, 8 / 15, 5])
    assert json.loads(json.dumps(found, allow_nan=False)) == found and not list(recwarn)


def test_a_class_without_rows_keeps_its_place_and_has_no_score():
    found = scored([(0, 0), (2, 0), (2, 2)])
    unknown = {"precision": None, "recall": None, "f1": None, "support": 0}
    assert found["per_class"]["DENGUE"] == unknown
    assert found["macro"]["recall"] == pytest.approx((1 + 0.5) / 2)
    assert found["classes"] == list(found["per_class"]) == CLASSES
    assert found["confusion_matrix"] == [[1, 0, 0], [0, 0, 0], [1, 0, 1]]


def test_a_class_may_be_called_like_an_average():
    found = scored([(0, 0), (1, 1), (1, 0)], ["accuracy", "macro avg"])
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["per_class"]["accuracy"]["recall"] == 1


@pytest.mark.parametrize("classes", [MOST_CLASSES, MOST_CLASSES + 1])
def test_what_grows_with_the_classes_is_kept_of_some_only(classes):
    labels = np.arange(3 * classes) % classes
    found = evaluate(labels, np.where(labels, labels, 1), [f"c{n}" for n in range(classes)])
    assert found["accuracy"] == pytest.approx(1 - 1 / classes)
    assert found["macro"]["recall"] == pytest.approx(1 - 1 / classes)
    assert ("confusion_matrix" in found) == ("per_class" in found) == (classes <= MOST_CLASSES)
