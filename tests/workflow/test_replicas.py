"""Batch normalisation and dropout: what ranks hold of their own, and how it is made equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from escala.core.files import read_json
from escala.data.base import Arrays
from escala.record import steps
from escala.record.run import measure
from escala.training.shards import batches, epoch_order
from tests.workloads.normalised import model as normalised

NAME, EPOCHS, BATCH, RATE = "normalised", 2, 32, 0.05
# Sums of float32 numbers in another order; SGD does not amplify that.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-6}
ONE_RANK = ["single", "wrapped-single"]
SYNCHRONOUS = ["horovod-mpi", "horovod-gloo", "mirrored", "multiworker-mirrored"]
# Code that every process begins with: rank 0 is killed after epoch 3.
ENDING = """
import os, signal
from escala.training.checkpoint import Checkpoint

due = Checkpoint.due

def ended(self, epoch):
    if epoch == 3 and self.process == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return due(self, epoch)

Checkpoint.due = ended
"""


@pytest.fixture
def run(small_split, request_for, tmp_path, with_workload) -> Callable[..., tuple[dict, Path]]:
    """Return a function that trains the network, and returns the result and the run's folder."""

    def train(strategy: str, folder: str = "run", code: str = "", **training) -> tuple[dict, Path]:
        with_workload(NAME, code)
        layout = "1x1" if strategy in ONE_RANK else "1x2"
        rate = {"value": RATE, "reference_batch": BATCH, "rule": "constant"}
        settings = {"epochs": EPOCHS, "learning_rate": rate, "dropout": 0.0, "save_model": True}
        request = request_for(strategy, layout, workload=NAME, **settings | training)
        measure(request, small_split, tmp_path / folder / "run.json", 300)
        return read_json(tmp_path / folder / "run.json"), tmp_path / folder

    return train


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


@pytest.mark.parametrize("strategy", ONE_RANK)
def test_one_rank_is_keras_own_fit(small_split, generators, run, strategy):
    result, folder = run(strategy, validate=True)
    assert result["status"] == "ok", result["reason"]
    data = Arrays(small_split)
    model = network(data)
    model.compile(tf.keras.optimizers.SGD(RATE), "sparse_categorical_crossentropy")
    (test,), labels = data.gather("test", slice(None))
    for epoch in result["epochs"]:
        order = epoch_order(data.rows("train"), 0, epoch["epoch"])
        (codes,), targets = data.gather("train", order)
        history = model.fit(codes, targets, batch_size=BATCH, shuffle=False, verbose=0).history
        assert epoch["loss"] == pytest.approx(history["loss"][0], rel=1e-4)
        loss = model.evaluate(test, labels, verbose=0)
        assert epoch["validation_loss"] == pytest.approx(loss, rel=1e-4)
        right = model.predict(test, verbose=0)[np.arange(len(labels)), labels]
        assert epoch["scores"] == {"likelihood": pytest.approx(right.mean(), rel=1e-4)}
    for found, expected in zip(kept(folder), model.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, **TOLERANCE)


@pytest.fixture(scope="module")
def two_ranks(small_split, generators) -> list[np.ndarray]:
    """The weights of two ranks that normalise their own rows, computed one after the other.

    At the end of an epoch their moving statistics are averaged by the rows of each. In the last
    step of an epoch the second rank has no rows.
    """
    data = Arrays(small_split)
    models, optimizer = [network(data) for _ in range(2)], tf.keras.optimizers.SGD(RATE)
    for epoch in range(1, EPOCHS + 1):
        order, taken = epoch_order(data.rows("train"), 0, epoch), np.zeros(2)
        for of_rank in batches(order, BATCH, [0.5, 0.5]):
            summed = [0.0] * len(models[0].trainable_variables)
            for number, rows in enumerate(of_rank):
                if not len(rows):
                    continue
                (codes,), targets = data.gather("train", rows)
                with tf.GradientTape() as tape:
                    outputs = models[number](codes, training=True)
                    losses = normalised.row_losses(targets, outputs, {})
                    share = tf.reduce_sum(losses) / sum(map(len, of_rank))
                gradients = tape.gradient(share, models[number].trainable_variables)
                summed = [a + b for a, b in zip(summed, gradients, strict=True)]
                taken[number] += len(rows)
            optimizer.apply_gradients(zip(summed, models[0].trainable_variables, strict=True))
            for one, other in zip(
                models[0].trainable_variables, models[1].trainable_variables, strict=True
            ):
                other.assign(one)
        for copies in zip(*(model.non_trainable_variables for model in models), strict=True):
            mean = np.average([copy.numpy() for copy in copies], axis=0, weights=taken)
            for copy in copies:
                copy.assign(mean)
    assert taken.tolist() == [81, 80]
    return models[0].get_weights()


@pytest.mark.parametrize("strategy", SYNCHRONOUS)
def test_moving_statistics_are_averaged_by_rows_and_equal_on_all_ranks(two_ranks, run, strategy):
    """A run whose ranks hold different weights fails."""
    result, folder = run(strategy, validate=True)
    assert result["status"] == "ok", result["reason"]
    for found, expected in zip(kept(folder), two_ranks, strict=True):
        np.testing.assert_allclose(found, expected, **TOLERANCE)


@pytest.mark.parametrize("strategy", ["hybrid", "parameter-server"])
def test_ranks_of_unequal_shares_or_with_one_copy_of_the_weights_agree(run, strategy):
    result, folder = run(strategy, validate=True, dropout=0.3)
    assert result["status"] == "ok", result["reason"]
    first = kept(folder)
    mean, variance = first[4:6]
    assert (mean != 0).any() and (variance != 1).any(), "both have moved"


@pytest.mark.parametrize("strategy", ["horovod-gloo", "mirrored"])
def test_a_run_that_was_ended_draws_what_it_would_have_drawn(run, strategy):
    stopping = {"monitor": "training", "patience": 9, "min_delta": 100.0, "restore_best": True}
    settings = {"epochs": 4, "checkpoint_epochs": 2, "dropout": 0.4, "early_stopping": stopping}
    whole, folder = run(strategy, "whole", **settings)
    assert whole["status"] == "ok", whole["reason"]
    broken, _ = run(strategy, "resumed", ENDING, **settings)
    assert "repeated, it goes on after epoch 2" in broken["reason"]
    resumed, again = run(strategy, "resumed", **settings)
    assert resumed["training"]["resumed_after"] == [2]
    ranks = len(whole["ranks"]["cores"])
    found, expected = (steps.loss_per_step(steps.read(f / "ranks", ranks)) for f in (again, folder))
    assert found["loss"].tolist() == expected["loss"].tolist()
    # The weights of the first epoch, by far the best, were kept in the checkpoint.
    assert resumed["training"]["best_epoch"] == whole["training"]["best_epoch"] == 1
    assert resumed["weights_sha256"] == whole["weights_sha256"]
