"""Batch normalisation over several ranks, against Keras's own layer on all their rows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.keras import layers

from escala.core.errors import Unavailable
from escala.engines.layers import over_ranks
from escala.engines.tensorflow.layers import SynchronisedBatchNormalization
from escala.engines.tensorflow.parameter_server import ParameterServerRanks
from escala.engines.tensorflow.state import local_variables

SHAPES = [(6,), (4, 5, 6)]


def built(kind: type, shape: tuple[int, ...]) -> tf.keras.layers.Layer:
    layer = kind(momentum=0.7, epsilon=1e-3)
    layer.build((None, *shape))
    return layer


def values(rows: int, shape: tuple[int, ...]) -> tf.Tensor:
    random = np.random.default_rng(rows)
    return tf.constant(random.normal(1.0, 2.0, (rows, *shape)), tf.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=["vectors", "pictures"])
def test_one_process_normalises_as_kerass_layer(shape):
    given = values(7, shape)
    upstream = values(7, shape) ** 2
    found = []
    for kind in (layers.BatchNormalization, SynchronisedBatchNormalization):
        layer = built(kind, shape)
        with tf.GradientTape() as tape:
            tape.watch(given)
            loss = tf.reduce_sum(upstream * layer(given, training=True))
        gradients = tape.gradient(loss, [given, *layer.trainable_variables])
        found.append([*gradients, layer(given, training=True), layer(given), *layer.weights])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=["vectors", "pictures"])
def test_a_frozen_layer_uses_its_moving_statistics_as_kerass_does(shape):
    given = values(7, shape)
    keras, layer = (
        built(kind, shape) for kind in (layers.BatchNormalization, SynchronisedBatchNormalization)
    )
    for each in (keras, layer):
        each(given, training=True)
        each.trainable = False
    np.testing.assert_allclose(
        layer(given + 1, training=True), keras(given + 1, training=True), rtol=1e-4, atol=1e-4
    )
    for one, same in zip(layer.weights, keras.weights, strict=True):
        np.testing.assert_allclose(one, same, rtol=1e-4, atol=1e-5)


def test_another_axis_than_the_last_is_refused():
    with pytest.raises(ValueError, match="normalises the last axis only"):
        SynchronisedBatchNormalization(axis=1).build((None, 4, 5, 6))


@pytest.mark.parametrize("shape", SHAPES, ids=["vectors", "pictures"])
def test_a_rank_adds_the_moments_of_its_rows_and_takes_those_of_all(shape):
    """Another rank is made up: its five rows, and one of weight 0 here, which must not count."""
    mine, theirs = values(3, shape), values(5, shape)
    axes = list(range(len(shape)))
    moments = [tf.reduce_sum(theirs**power, axes) for power in (0, 1, 2)]
    other = tf.cast(tf.concat([moments[0][:1], *moments[1:]], 0), tf.float64)
    keras, layer = (
        built(kind, shape) for kind in (layers.BatchNormalization, SynchronisedBatchNormalization)
    )
    expected = keras(tf.concat([mine, theirs], 0), training=True)[:3]
    names = []

    def summed(own, name):
        names.append(name)
        return own + other

    weights = tf.constant([1.0, 1.0, 1.0, 0.0])
    with over_ranks(weights, summed):
        found = layer(tf.concat([mine, 9 + theirs[:1]], 0), training=True)
    np.testing.assert_allclose(found[:3], expected, rtol=1e-4, atol=1e-5)
    for one, same in zip(layer.weights, keras.weights, strict=True):
        np.testing.assert_allclose(one, same, rtol=1e-4, atol=1e-5)
    assert names == [f"0.{layer.name}"]


def test_statistics_of_all_rows_are_no_ranks_own():
    local, shared = layers.BatchNormalization(), SynchronisedBatchNormalization()
    model = tf.keras.Sequential([layers.Input((4,)), local, shared])
    own = {id(variable) for variable in local_variables(model)}
    assert own == {id(variable) for variable in local.non_trainable_variables}


def test_ranks_without_a_common_step_are_refused():
    server = ParameterServerRanks({}, None)
    with pytest.raises(Unavailable, match="no step that all ranks make together"):
        server.summed(tf.zeros(3), "0.layer")
