"""Real ranks under every strategy: what they compute, share and hold of their own.

Their network has batch normalisation and dropout. One run of each strategy serves all claims.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import tensorflow as tf

from escala.core.files import read_json
from escala.data.base import Arrays
from escala.data.splits import Side, write_split
from escala.record import collect
from escala.record.run import measure
from escala.strategies import STRATEGIES
from escala.training.shards import batches, epoch_order
from escala.workloads import WORKLOADS
from tests.conftest import CLASSES
from tests.workflow.conftest import add_workload, begin_with, mean_losses
from tests.workloads.normalised import model as normalised

NAME, EPOCHS, BATCH, RATE = "normalised", 4, 32, 0.05
ROWS, TEST_ROWS, STEPS_PER_EPOCH = 161, 69, 6
# Sums of float32 numbers in another order; SGD does not amplify that.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-6}
ONE_RANK = ["single", "wrapped-single", "torch-single", "ddp-single"]
EVEN = ["horovod-gloo", "mirrored", "multiworker-mirrored", "horovod-mpi", "ddp-gloo", "fsdp"]
UNEVEN = ["hybrid", "ddp-hybrid"]
#: Of PyTorch, whose model begins with the weights of Keras's.
TORCH = [name for name, each in STRATEGIES.items() if (each.engine or "").startswith("torch.")]
#: Run only in a sweep: others of their engine show the same. MPI's ranks are in `test_exchange`.
SWEPT = [
    "wrapped-single", "ddp-single", "multiworker-mirrored", "horovod-mpi", "horovod-gloo",
    "ddp-hybrid",
]  # fmt: skip
#: Interrupted, with which optimizers; one of them is no sweep. `test_exchange` resumes TensorFlow.
RESUMED = {
    "horovod-gloo": {}, "mirrored": {}, "multiworker-mirrored": {}, "horovod-mpi": {},
    "ddp-gloo": {"optimizer": "adam"}, "fsdp": {"optimizer": "adam"},
    "torch-single": {"optimizer": "rmsprop"},
}  # fmt: skip
BEST_IS_FIRST = {"monitor": "training", "patience": 9, "min_delta": 100.0, "restore_best": True}
# Code that every process begins with: rank 0 is killed after epoch 3, which no checkpoint holds.
ENDING = """
import os, signal
from escala.training.checkpoint import Checkpoint

due = Checkpoint.is_due

def ended(self, epoch):
    if epoch == 3 and self.process == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return due(self, epoch)

Checkpoint.is_due = ended
"""

Trained = tuple[dict, pd.DataFrame, Path]
#: The loss of every step, and the weights at the end.
Expected = tuple[list[float], list[np.ndarray]]


def each(strategies: list[str], swept: list[str] = SWEPT) -> pytest.MarkDecorator:
    """Run a test for each strategy, for some of them only in a sweep."""
    marks = {name: [pytest.mark.sweep] if name in swept else [] for name in strategies}
    for name in filter(TORCH.__contains__, strategies):
        marks[name].append(pytest.mark.torch)
    cases = [pytest.param(name, marks=marks[name]) for name in strategies]
    return pytest.mark.parametrize("strategy", cases)


@pytest.fixture(scope="module")
def begin(small_split, generators, tmp_path_factory) -> str:
    """A file with the initial weights of the Keras model."""
    file = tmp_path_factory.mktemp("begin") / "weights.npz"
    np.savez(file, *network(Arrays(small_split)).get_weights())
    return str(file)


@pytest.fixture(scope="module")
def run(small_split, request_for, begin) -> Callable[..., tuple[dict, Path]]:
    """Return a function that trains the network in a folder, and returns the result."""

    def train(strategy: str, folder: Path, code: str = "", **training) -> dict:
        layout = "1x1" if strategy in ONE_RANK else "1x2"
        rate = {"value": RATE, "reference_batch": BATCH, "rule": "constant"}
        settings = {"epochs": EPOCHS, "learning_rate": rate, "dropout": 0.0, "save_model": True}
        settings |= {"begin": begin} if strategy in TORCH else {}
        request = request_for(strategy, layout, workload=NAME, **settings | training)
        with pytest.MonkeyPatch.context() as patch:
            add_workload(NAME, folder.parent / "site", patch, code)
            measure(request, small_split, folder / "run.json", 300)
        return read_json(folder / "run.json")

    return train


@pytest.fixture(scope="module")
def trained(run, tmp_path_factory) -> Callable[[str], Trained]:
    """Return the one run of a strategy: its result, the steps of its ranks, and its folder."""

    @cache
    def of(strategy: str) -> Trained:
        folder = tmp_path_factory.mktemp(strategy) / "run"
        knobs = {"fractions": [3, 1]} if strategy in UNEVEN else {}
        masks = str(folder.parent / "masks")
        result = run(strategy, folder, validate=True, masks=masks, knobs=knobs)
        # Ranks that hold different weights fail their run.
        assert result["status"] == "ok", result["reason"]
        return result, collect.read_steps(folder / "ranks", len(result["ranks"]["cores"])), folder

    return of


@pytest.fixture(scope="module")
def generators() -> Iterator[None]:
    """Let Keras draw initial weights in this process as it does in ranks."""
    tf.keras.backend.experimental.enable_tf_random_generator()
    yield
    tf.keras.backend.experimental.disable_tf_random_generator()


def network(data: Arrays) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(0)
    return normalised.build(data.inputs, (5,), {"dropout": 0.0}, {})


def kept(folder: Path) -> list[np.ndarray]:
    with np.load(folder / "model.npz") as arrays:
        return [arrays[name] for name in arrays.files]


@pytest.fixture(scope="module")
def perceptron(request_for, tmp_path_factory) -> Callable[..., dict]:
    """Return a function that trains an `mlp` in a folder, and returns the result.

    All engines begin with the same weights; its steps have the rows of those of the network above.
    """
    random, split = np.random.default_rng(0), tmp_path_factory.mktemp("table") / "split"
    sides = {
        side: Side(
            {"features": random.standard_normal((rows, 30), np.float32)}, np.arange(rows) % 3
        )
        for side, rows in (("train", ROWS), ("test", TEST_ROWS))
    }
    about = {"kind": "tabular", "name": "table", "seed": 0, "provenance": "simulated"}
    write_split(split, sides, classes=["a", "b", "c"], **about)
    rate = {"value": RATE, "reference_batch": BATCH, "rule": "constant"}
    settings = WORKLOADS["mlp"].setting_defaults | {"epochs": EPOCHS, "learning_rate": rate}
    settings |= {"initial_weights": "seeded", "save_model": True, "validate": True}

    def train(strategy: str, folder: Path, code: str = "", **changes) -> dict:
        layout = "1x1" if STRATEGIES[strategy].layouts.one_rank else "1x2"
        request = request_for(strategy, layout, workload="mlp", **settings | changes)
        with pytest.MonkeyPatch.context() as patch:
            begin_with(code, folder.parent / "site", patch)
            measure(request, split, folder / "run.json", 300)
        return read_json(folder / "run.json")

    return train


@pytest.mark.jax
def test_one_and_two_processes_of_jax_make_the_steps_of_keras(perceptron, tmp_path):
    """Two of them compute their rows in parts."""
    results, losses = {}, {}
    for strategy in ("single", "jax-single", "jax-gloo"):
        folder = tmp_path / strategy
        knobs = {"accumulation": 2} if strategy == "jax-gloo" else {}
        results[strategy] = run = perceptron(strategy, folder, knobs=knobs)
        # Ranks that hold different weights fail their run.
        assert run["status"] == "ok", run["reason"]
        losses[strategy] = mean_losses(
            collect.read_steps(folder / "ranks", len(run["ranks"]["cores"]))
        )
    expected = results.pop("single")
    assert expected["epochs"][-1]["loss"] < expected["epochs"][0]["loss"]
    for strategy, run in results.items():
        np.testing.assert_allclose(losses[strategy], losses["single"], **TOLERANCE)
        pairs = zip(kept(tmp_path / strategy), kept(tmp_path / "single"), strict=True)
        for one, other in pairs:
            np.testing.assert_allclose(one, other, **TOLERANCE)
        assert run["ranks"]["evaluating"] == len(run["ranks"]["cores"])
        for name in ("rows", "accuracy", "confusion_matrix"):
            assert run["evaluation"][name] == expected["evaluation"][name]
        for mine, other in zip(run["epochs"], expected["epochs"], strict=True):
            assert mine["distinct_rows"] == ROWS
            for name in ("loss", "accuracy", "validation_loss", "validation_accuracy"):
                assert mine[name] == pytest.approx(other[name], rel=1e-4)


@pytest.mark.jax
@pytest.mark.sweep
def test_processes_of_jax_go_on_after_a_checkpoint(perceptron, tmp_path):
    resumed, unbroken = resumed_and_whole(perceptron, tmp_path, "jax-gloo")
    assert resumed["weights_sha256"] == unbroken["weights_sha256"]


@pytest.fixture(scope="module")
def by_keras(small_split, generators) -> tuple[list[tuple[float, float, float]], list[np.ndarray]]:
    """The loss, the test loss and the likelihood of each epoch of Keras's own fit; the weights."""
    data = Arrays(small_split)
    model, epochs = network(data), []
    model.compile(tf.keras.optimizers.SGD(RATE), "sparse_categorical_crossentropy")
    (test,), labels = data.gather("test", slice(None))
    for epoch in range(1, EPOCHS + 1):
        (codes,), targets = data.gather("train", epoch_order(data.rows("train"), 0, epoch))
        history = model.fit(codes, targets, batch_size=BATCH, shuffle=False, verbose=0).history
        right = model.predict(test, verbose=0)[np.arange(len(labels)), labels]
        test_loss = model.evaluate(test, labels, verbose=0)
        epochs.append((history["loss"][0], test_loss, right.mean()))
    return epochs, model.get_weights()


@each(ONE_RANK)
def test_one_rank_is_keras_own_fit(by_keras, trained, strategy):
    (epochs, weights), (result, _, folder) = by_keras, trained(strategy)
    for epoch, expected in zip(result["epochs"], epochs, strict=True):
        found = epoch["loss"], epoch["validation_loss"], epoch["scores"]["likelihood"]
        assert found == pytest.approx(expected, rel=1e-4)
    for one, other in zip(kept(folder), weights, strict=True):
        np.testing.assert_allclose(one, other, **TOLERANCE)


def two_ranks(data: Arrays, fractions: list[float]) -> Expected:
    """Return the losses and weights of two ranks that normalise their own rows.

    They are computed one after the other. At the end of an epoch their moving statistics are
    averaged by the rows of each. With equal fractions the second has no rows in the last step of an
    epoch.
    """
    models, optimizer = [network(data) for _ in range(2)], tf.keras.optimizers.SGD(RATE)
    losses_of_steps = []
    for epoch in range(1, EPOCHS + 1):
        order, taken = epoch_order(data.rows("train"), 0, epoch), np.zeros(2)
        for rows_of_ranks in batches(order, BATCH, fractions):
            summed, loss = [0.0] * len(models[0].trainable_variables), 0.0
            for number, rows in enumerate(rows_of_ranks):
                if not len(rows):
                    continue
                (codes,), targets = data.gather("train", rows)
                with tf.GradientTape() as tape:
                    outputs = models[number](codes, training=True)
                    losses = normalised.row_losses(targets, outputs, {})
                    part = tf.reduce_sum(losses) / sum(map(len, rows_of_ranks))
                gradients = tape.gradient(part, models[number].trainable_variables)
                summed = [a + b for a, b in zip(summed, gradients, strict=True)]
                taken[number] += len(rows)
                loss += float(part)
            losses_of_steps.append(loss)
            optimizer.apply_gradients(zip(summed, models[0].trainable_variables, strict=True))
            for one, other in zip(
                models[0].trainable_variables, models[1].trainable_variables, strict=True
            ):
                other.assign(one)
        for copies in zip(*(model.non_trainable_variables for model in models), strict=True):
            mean = np.average([copy.numpy() for copy in copies], axis=0, weights=taken)
            for copy in copies:
                copy.assign(mean)
    return losses_of_steps, models[0].get_weights()


@pytest.fixture(scope="module")
def expected(small_split, generators) -> Callable[..., Expected]:
    return cache(lambda *fractions: two_ranks(Arrays(small_split), list(fractions)))


@each([*EVEN, *UNEVEN])
def test_two_ranks_compute_the_losses_and_the_weights_of_their_definition(
    trained, expected, strategy
):
    """Moving statistics are averaged by the rows of each rank."""
    result, table, folder = trained(strategy)
    assert result["ranks"]["fractions"] == ([0.75, 0.25] if strategy in UNEVEN else [0.5, 0.5])
    losses, weights = expected(*result["ranks"]["fractions"])
    assert result["seconds"]["averaging"] > 0
    found = mean_losses(table)
    np.testing.assert_allclose(found, losses, **TOLERANCE)
    for one, other in zip(kept(folder), weights, strict=True):
        np.testing.assert_allclose(one, other, **TOLERANCE)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("knobs", "tolerance"),
    [
        (
            {"communication_hook": "shared-memory", "gradient_as_bucket_view": True}
            | {"bucket_cap_mb": 1e-4},
            TOLERANCE,
        ),
        pytest.param({"communication_hook": "fp16"}, {"rtol": 1e-3}, marks=pytest.mark.sweep),
        # The last step of an epoch has one row, for which PyTorch compiles once more.
        pytest.param({"torch_compile": True}, TOLERANCE, marks=pytest.mark.sweep),
    ],
    ids=lambda each: "-".join(each),
)
def test_knobs_of_pytorch_train_the_same_model(run, trained, expected, tmp_path, knobs, tolerance):
    result = run("ddp-gloo", tmp_path / "run", knobs=knobs)
    assert result["status"] == "ok", result["reason"]
    losses, _ = expected(0.5, 0.5)
    found = mean_losses(collect.read_steps(tmp_path / "run" / "ranks", 2))
    np.testing.assert_allclose(found, losses, **tolerance)
    if tolerance is not TOLERANCE:
        _, table, _ = trained("ddp-gloo")
        assert not np.array_equal(found, mean_losses(table)), "the knob rounds"


@pytest.mark.torch
def test_ranks_of_pytorch_that_normalise_together_follow_one_process(run, trained, tmp_path):
    result = run("ddp-gloo", tmp_path / "run", knobs={"batch_norm": "synchronised"})
    assert result["status"] == "ok", result["reason"]
    _, table, folder = trained("single")
    losses = (
        mean_losses(each) for each in (collect.read_steps(tmp_path / "run" / "ranks", 2), table)
    )
    np.testing.assert_allclose(*losses, **TOLERANCE)
    for one, other in zip(kept(tmp_path / "run"), kept(folder), strict=True):
        np.testing.assert_allclose(one, other, **TOLERANCE)


@each(EVEN)
def test_ranks_draw_other_numbers_in_every_step_of_every_epoch(trained, strategy):
    _, _, folder = trained(strategy)
    files = (folder.parent / "masks").iterdir()
    masks = [bytes.fromhex(line) for file in files for line in file.read_text().split()]
    whole = [mask for mask in masks if len(mask) == BATCH // 2 * len(CLASSES)]
    assert len(set(whole)) == len(whole) >= 2 * EPOCHS * (STEPS_PER_EPOCH - 1)


@each([*ONE_RANK, *EVEN, *UNEVEN])
def test_a_run_takes_every_row_once_per_epoch_and_says_what_it_obtained(
    trained, small_split, strategy
):
    result, table, folder = trained(strategy)
    ranks = 1 if strategy in ONE_RANK else 2
    assert result["ranks"]["obtained"] == result["ranks"]["asked"] == ranks
    assert result["ranks"]["one_clock"] is True
    # Mirrored ranks are one process, which evaluates all rows.
    assert result["ranks"]["evaluating"] == len(result["ranks"]["cores"])
    assert [epoch["distinct_rows"] for epoch in result["epochs"]] == [ROWS] * EPOCHS
    threads = 2 if strategy == "mirrored" else 1
    assert result["ranks"]["threads"] == {"intra_op": threads, "inter_op": threads}
    assert sum(result["ranks"]["fractions"]) == pytest.approx(1)
    if strategy in EVEN:
        assert result["ranks"]["fractions"] == [0.5, 0.5]
    assert result["training"]["epochs_done"] == EPOCHS
    assert result["step_seconds"]["count"] == EPOCHS * STEPS_PER_EPOCH
    assert result["evaluation"]["rows"] == result["training"]["test_rows"] == TEST_ROWS
    spent = table.groupby(["rank", "epoch"])[["input_seconds", "step_seconds"]].sum().sum(axis=1)
    for epoch in result["epochs"]:
        assert epoch["train_seconds"] >= spent[:, epoch["epoch"]].max()
        assert epoch["epoch_wall_seconds"] >= epoch["train_seconds"]
    predictions = np.load(folder / "predictions.npy", allow_pickle=False)
    labels = np.load(small_split / "test_labels.npy")
    final = pytest.approx(result["evaluation"]["accuracy"])
    assert (predictions == labels).mean() == final, "in the order of the rows"
    assert result["epochs"][-1]["validation_accuracy"] == final
    assert result["training"]["validated_on"] == "test"
    rows = table.pivot_table(index=["epoch", "step"], columns="rank", values="rows")
    assert (rows.groupby("epoch").sum().sum(axis=1) == ROWS).all()
    if strategy in EVEN and strategy != "mirrored":
        assert rows.loc[(1, STEPS_PER_EPOCH)].tolist() == [1, 0]


@pytest.mark.torch
def test_a_rank_of_fsdp_holds_half_of_what_is_trained(trained):
    result, _, folder = trained("fsdp")
    held = [int(file.read_text()) for file in folder.parent.glob("held-*")]
    # The moving statistics of 8 channels are not trained.
    assert sum(held) == result["training"]["parameters"] - 2 * 8
    assert len(held) == 2 and max(held) < 0.51 * sum(held)


def test_the_parameter_server_trains_on_every_row_without_waiting(run, tmp_path, monkeypatch):
    """Its losses are nobody else's; what holds is that each row was taken once and it learns."""
    monkeypatch.setenv("STARTED_BY", str(tmp_path))
    result = run("parameter-server", tmp_path / "run", epochs=6, validate=True, dropout=0.3)
    assert result["status"] == "ok", result["reason"]
    assert result["ranks"]["obtained"] == 2
    assert result["step_seconds"] is None
    assert [epoch["rows"] for epoch in result["epochs"]] == [ROWS] * 6
    assert result["epochs"][-1]["loss"] < result["epochs"][0]["loss"]
    mean, variance = kept(tmp_path / "run")[4:6]
    assert (mean != 0).any() and (variance != 1).any(), "both have moved"
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("STARTED_BY") == str(tmp_path):
                left.append(process.cmdline())
    assert not left


@each(RESUMED, [name for name in RESUMED if name != "ddp-gloo"])
def test_a_run_that_was_ended_goes_on_as_if_it_had_not_been(run, tmp_path, strategy):
    """It draws the same numbers, keeps what its optimizer does, and restores the best weights."""
    resumed, unbroken = resumed_and_whole(
        run, tmp_path, strategy, early_stopping=BEST_IS_FIRST, **RESUMED[strategy]
    )
    # The weights of the first epoch, by far the best, were kept in the checkpoint.
    assert resumed["training"]["best_epoch"] == unbroken["training"]["best_epoch"] == 1
    assert resumed["weights_sha256"] == unbroken["weights_sha256"]


def resumed_and_whole(run, folder: Path, strategy: str, **settings) -> tuple[dict, dict]:
    """Return a run that was ended and went on, and one that was not; their losses are equal."""
    settings |= {"checkpoint_epochs": 2, "dropout": 0.4}
    unbroken = run(strategy, folder / "whole", **settings)
    assert unbroken["status"] == "ok", unbroken["reason"]
    broken = run(strategy, folder / "resumed", ENDING, **settings)
    assert broken["status"] == "failed"
    assert "rank 0 was ended by signal 9" in broken["reason"]
    assert "the next attempt goes on after epoch 2" in broken["reason"]
    resumed = run(strategy, folder / "resumed", **settings)
    assert resumed["training"]["resumed_after"] == [2]
    assert [epoch["epoch"] for epoch in resumed["epochs"]] == [1, 2, 3, 4]
    assert not (folder / "resumed" / "checkpoint").exists()
    ranks = len(unbroken["ranks"]["cores"])
    found, expected = (
        mean_losses(collect.read_steps(folder / name / "ranks", ranks)).tolist()
        for name in ("resumed", "whole")
    )
    assert found == expected
    return resumed, unbroken
