"""Early stopping against Keras's own callback."""

from __future__ import annotations

import math

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.training.train import MONITORED, EarlyStopping


class Model:
    """What the callback reads and writes of a model; its weights are the number of the epoch."""

    def __init__(self):
        self.epoch, self.stop_training = 0, False

    def get_weights(self) -> list[int]:
        return [self.epoch]

    def set_weights(self, weights: list[int]) -> None:
        self.restored = weights


def by_keras(losses: list[float], patience: int, min_delta: float) -> tuple[int, list[int]]:
    """Return the epochs that Keras trains, and the weights of the best of them."""
    callback = tf.keras.callbacks.EarlyStopping(
        "loss", min_delta, patience, mode="min", restore_best_weights=True
    )
    callback.set_model(Model())
    callback.on_train_begin()
    for number, loss in enumerate(losses, start=1):
        callback.model.epoch = number
        callback.on_epoch_end(number - 1, {"loss": loss})
        if callback.model.stop_training:
            break
    return callback.model.epoch, callback.best_weights


losses = st.lists(st.integers(0, 8).map(lambda n: n / 4), min_size=1, max_size=12)


@settings(max_examples=200)
@given(losses, st.integers(1, 4), st.sampled_from([0.0, 0.25, 0.6]), st.sampled_from([*MONITORED]))
def test_it_stops_where_keras_does_and_keeps_the_same_weights(values, patience, min_delta, monitor):
    own = EarlyStopping(
        {
            "monitor": monitor,
            "patience": patience,
            "min_delta": min_delta,
            "restore_best": True,
        }
    )
    for number, loss in enumerate(values, start=1):
        epoch = {"epoch": number} | dict.fromkeys(MONITORED.values(), math.nan)
        epoch[MONITORED[monitor]] = loss
        if own.see(epoch, lambda number=number: [number]):
            break
    assert (number, own.best_weights) == by_keras(values, patience, min_delta)
    assert own.best_weights == [own.best_epoch]


@settings(max_examples=100)
@given(losses, st.integers(0, 12), st.integers(1, 4), st.booleans())
def test_a_resumed_run_stops_where_a_whole_one_does_and_reads_the_best_weights_once(
    values, done, patience, restore
):
    asked = {"monitor": "training", "patience": patience, "min_delta": 0.0, "restore_best": restore}
    epochs = [{"epoch": number, "loss": value} for number, value in enumerate(values, start=1)]
    done = min(done, by_keras(values, patience, 0.0)[0] - 1)
    kept = by_keras(values[:done], patience, 0.0)[1] if done else None
    reads, own = [], EarlyStopping(asked)
    own.resume(epochs[:done], lambda: reads.append(kept) or kept)
    assert len(reads) == (restore and done > 0)
    for epoch in epochs[done:]:
        if own.see(epoch, lambda epoch=epoch: [epoch["epoch"]]):
            break
    last, best = by_keras(values, patience, 0.0)
    assert (epoch["epoch"], own.best_epoch) == (last, best[0])
    assert own.best_weights == (best if restore else None)


@pytest.mark.parametrize("asked", [None, {"monitor": "training", "patience": 9, "min_delta": 0.0}])
def test_no_weights_are_kept_unless_they_are_to_be_restored(asked):
    own = EarlyStopping(asked and asked | {"restore_best": False})
    assert not own.see({"epoch": 1, "loss": 1.0}, lambda: pytest.fail("weights were read"))
    assert own.best_weights is None
