"""Layers in TensorFlow: initial weights by laws, batch normalisation over ranks, seeded dropout."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import ks_2samp

from escala.core.errors import InputError, Unavailable
from escala.engines import layers
from escala.engines.layers import over_ranks
from escala.engines.tensorflow.distribute import ParameterServerRanks
from escala.engines.tensorflow.layers import (
    SynchronisedBatchNormalization,
    initialise,
    seed_random_layers,
    use_generators,
)
from escala.engines.tensorflow.step import local_variables

KERAS, LAYERS = tf.keras.initializers, tf.keras.layers


@pytest.mark.parametrize(
    ("law", "theirs", "shape"),
    [
        (layers.GLOROT, KERAS.GlorotUniform(1), (3, 3, 16, 32)),
        (
            layers.variance_scaling(2, "fan_out", "truncated_normal"),
            KERAS.VarianceScaling(2, "fan_out", "truncated_normal", 1),
            (3, 3, 16, 32),
        ),
        (
            layers.variance_scaling(2, "fan_in", "normal"),
            KERAS.VarianceScaling(2, "fan_in", "untruncated_normal", 1),
            (120, 60),
        ),
        (layers.uniform(0.05), KERAS.RandomUniform(seed=1), (120, 60)),
    ],
)
def test_values_are_distributed_as_those_of_kerass_initialiser(law, theirs, shape):
    ours, theirs = law(shape, np.random.default_rng(2)), theirs(shape).numpy()
    assert ours.dtype == np.float32 and ours.shape == shape
    assert ks_2samp(ours.ravel(), theirs.ravel()).pvalue > 0.01
    # A law without limits has none, and the others have Keras's.
    assert np.abs(ours).max() == pytest.approx(np.abs(theirs).max(), rel=0.15)


@pytest.mark.parametrize("shape", [(20, 80), (80, 20)])
def test_an_orthogonal_matrix_keeps_lengths(shape):
    found = layers.orthogonal(shape, np.random.default_rng(1))
    wide = found if shape[0] < shape[1] else found.T
    np.testing.assert_allclose(wide @ wide.T, np.eye(20), atol=1e-6)


def test_each_layer_begins_by_its_law_and_the_seed():
    model = tf.keras.Sequential(
        [
            LAYERS.Input((6,)),
            LAYERS.Embedding(9, 8),
            LAYERS.LSTM(8, return_sequences=True),
            LAYERS.Conv1D(8, 3),
            LAYERS.BatchNormalization(),
            LAYERS.Flatten(),
            LAYERS.Dense(4),
        ]
    )
    before = model.get_weights()
    initialise(model, 5)
    first = model.get_weights()
    # Constants are Keras's, the forget gate's among them; all others are drawn anew.
    assert [np.array_equal(*each) for each in zip(before, first, strict=True)] == [
        *(False, False, False, True),
        *(False, True),
        *(True, True, True, True),
        *(False, True),
    ]
    initialise(model, 5)
    assert all(map(np.array_equal, model.get_weights(), first))
    initialise(model, 6)
    assert not np.array_equal(model.get_weights()[0], first[0])


def test_an_initialiser_without_a_law_is_refused():
    model = tf.keras.Sequential(
        [LAYERS.Input((3,)), LAYERS.Dense(2, kernel_initializer=KERAS.RandomNormal())]
    )
    with pytest.raises(InputError, match=r"kernel:0 begins by an init.*remove the setting"):
        initialise(model, 1)


def built(shape: tuple[int, ...]) -> list[tf.keras.layers.Layer]:
    pair = [
        kind(momentum=0.7, epsilon=1e-3)
        for kind in (LAYERS.BatchNormalization, SynchronisedBatchNormalization)
    ]
    for layer in pair:
        layer.build((None, *shape))
    return pair


def values(rows: int, shape: tuple[int, ...]) -> tf.Tensor:
    random = np.random.default_rng(rows)
    return tf.constant(random.normal(1.0, 2.0, (rows, *shape)), tf.float32)


def assert_alike(found, expected) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(6,), (4, 5, 6)], ids=["vectors", "pictures"])
def test_one_process_normalises_as_kerass_layer(shape):
    given, upstream, found = values(7, shape), values(7, shape) ** 2, []
    for layer in built(shape):
        with tf.GradientTape() as tape:
            tape.watch(given)
            loss = tf.reduce_sum(upstream * layer(given, training=True))
        gradients = tape.gradient(loss, [given, *layer.trainable_variables])
        trained = [layer(given, training=True), layer(given), *layer.weights]
        layer.trainable = False
        frozen = layer(given + 1, training=True)
        found.append([*gradients, *trained, frozen, *layer.weights])
    assert_alike(*found)


def test_another_axis_than_the_last_is_refused():
    with pytest.raises(ValueError, match="normalises the last axis only"):
        SynchronisedBatchNormalization(axis=1).build((None, 4, 5, 6))


@pytest.mark.parametrize("shape", [(6,), (4, 5, 6)], ids=["vectors", "pictures"])
def test_a_rank_adds_the_moments_of_its_rows_and_takes_those_of_all(shape):
    """Another rank is made up: its five rows, and one of weight 0 here, which must not count."""
    mine, theirs = values(3, shape), values(5, shape)
    axes = list(range(len(shape)))
    moments = [tf.reduce_sum(theirs**power, axes) for power in (0, 1, 2)]
    other = tf.cast(tf.concat([moments[0][:1], *moments[1:]], 0), tf.float64)
    keras, layer = built(shape)
    expected, names = keras(tf.concat([mine, theirs], 0), training=True)[:3], []
    weights = tf.constant([1.0, 1.0, 1.0, 0.0])
    with over_ranks(weights, lambda mine, name: names.append(name) or mine + other):
        found = layer(tf.concat([mine, 9 + theirs[:1]], 0), training=True)
    assert_alike([found[:3], *layer.weights], [expected, *keras.weights])
    assert names == [f"0.{layer.name}"]


def test_ranks_without_a_common_step_are_refused():
    with pytest.raises(Unavailable, match="no step that all ranks make together"):
        ParameterServerRanks({}, None).sum_over_ranks(tf.zeros(3), "0.layer")


def test_only_what_a_rank_updates_by_itself_is_its_own():
    """Statistics of all rows are not, nor what is frozen, nor counts."""
    frozen, local = LAYERS.Dense(2, trainable=False), LAYERS.BatchNormalization()
    counting, shared = LAYERS.Normalization(), SynchronisedBatchNormalization()
    chain = [LAYERS.Input((4,)), counting, frozen, local, shared, LAYERS.Dense(3)]
    found = local_variables(tf.keras.Sequential(chain))
    names = {id(variable) for variable in found}
    assert {id(each) for each in local.non_trainable_variables} <= names
    assert not names & {id(w) for w in (*frozen.weights, *shared.weights)}
    assert all(variable.dtype.is_floating for variable in found)


def drawn(model: tf.keras.Model, *seed: int) -> list[np.ndarray]:
    """Return what the layers leave in two steps, one after the other."""
    seed_random_layers(model, *seed)
    ones = np.ones((3, *model.input_shape[1:]), np.float32)
    return [left.numpy() for _ in range(2) for left in model(ones, training=True)]


def test_layers_in_layers_draw_by_the_seed_whatever_was_drawn_before():
    """In models, wrappers, cells and layers of users."""

    class Block(LAYERS.Layer):
        def __init__(self):
            super().__init__()
            self.inner = LAYERS.TimeDistributed(LAYERS.Dropout(0.5))

        def call(self, rows, training=None):
            return self.inner(rows, training=training)

    use_generators()
    inputs = LAYERS.Input((5, 64))
    found = LAYERS.Bidirectional(LAYERS.GRU(32, dropout=0.5, return_sequences=True))(inputs)
    cells = [LAYERS.LSTMCell(32, dropout=0.5), LAYERS.GRUCell(32, recurrent_dropout=0.5)]
    found = LAYERS.RNN(cells, return_sequences=True)(Block()(found))
    nested = LAYERS.Bidirectional(LAYERS.RNN(LAYERS.LSTMCell(8, dropout=0.5)))
    within = tf.keras.Sequential([LAYERS.Input((5, 64)), LAYERS.Dropout(0.5)])
    model = tf.keras.Model(
        inputs, [found, nested(found), within(inputs), LAYERS.Dropout(0.5)(inputs)]
    )
    try:
        seeds = [(3, 0, 1), (3, 1, 1), (3, 0, 2), (4, 0, 1)]
        every = [drawn(model, *seed) for seed in seeds]
        for left, expected in zip(drawn(model, *seeds[0]), every[0], strict=True):
            np.testing.assert_array_equal(left, expected)
    finally:
        tf.keras.backend.experimental.disable_tf_random_generator()
    # Steps, layers, processes, epochs and runs draw otherwise.
    assert len({left.tobytes() for each in every for left in each}) == 2 * 4 * len(seeds)
