"""What Keras's random layers draw depends on the run, the process and the epoch alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.keras import layers

from escala.engines.tensorflow.state import local_variables, seed_random_layers, use_generators


@pytest.fixture(scope="module")
def model() -> Iterator[tf.keras.Model]:
    """A model that gives what two layers leave of its input, one of them in a model within it."""
    use_generators()
    inputs = layers.Input((64,))
    inner = tf.keras.Sequential([layers.Input((64,)), layers.Dropout(0.5)])
    yield tf.keras.Model(inputs, [layers.Dropout(0.5)(inputs), inner(inputs)])
    tf.keras.backend.experimental.disable_tf_random_generator()


def drawn(model: tf.keras.Model, *seed: int) -> list[np.ndarray]:
    """Return what the layers leave in two steps, one after the other."""
    seed_random_layers(model, *seed)
    ones = np.ones((3, *model.input_shape[1:]), np.float32)
    return [left.numpy() for _ in range(2) for left in model(ones, training=True)]


def test_they_draw_the_same_for_a_seed_whatever_was_drawn_before(model):
    first = drawn(model, 3, 0, 1)
    drawn(model, 9, 9, 9)
    for found, expected in zip(drawn(model, 3, 0, 1), first, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_steps_layers_processes_epochs_and_runs_draw_otherwise(model):
    seeds = [(3, 0, 1), (3, 1, 1), (3, 0, 2), (4, 0, 1)]
    masks = {mask.tobytes() for seed in seeds for mask in drawn(model, *seed)}
    assert len(masks) == 4 * len(seeds)


def test_only_what_a_model_updates_by_itself_is_a_ranks_own():
    frozen = layers.Dense(2, trainable=False)
    counting = layers.Normalization()
    chain = [layers.Input((4,)), counting, frozen, layers.BatchNormalization(), layers.Dense(3)]
    own = local_variables(tf.keras.Sequential(chain))
    names = {variable.name.rpartition("/")[2] for variable in own}
    assert {"moving_mean:0", "moving_variance:0"} <= names
    assert not {id(variable) for variable in own} & {id(w) for w in frozen.weights}
    assert all(variable.dtype.is_floating for variable in own)


def test_layers_in_wrappers_cells_and_layers_are_seeded_and_unbuilt_ones_left_out():
    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = layers.TimeDistributed(layers.Dropout(0.5))

        def call(self, rows, training=None):
            return self.inner(rows, training=training)

    use_generators()
    inputs = layers.Input((5, 64))
    found = layers.Bidirectional(layers.GRU(32, dropout=0.5, return_sequences=True))(inputs)
    cells = [layers.LSTMCell(32, dropout=0.5), layers.GRUCell(32, recurrent_dropout=0.5)]
    found = layers.RNN(cells, return_sequences=True)(Block()(found))
    nested = layers.Bidirectional(layers.RNN(layers.LSTMCell(8, dropout=0.5)))
    model = tf.keras.Model(inputs, [found, nested(found)])
    try:
        first, _, again = drawn(model, 3), drawn(model, 8), drawn(model, 3)
    finally:
        tf.keras.backend.experimental.disable_tf_random_generator()
    for left, expected in zip(again, first, strict=True):
        np.testing.assert_array_equal(left, expected)
