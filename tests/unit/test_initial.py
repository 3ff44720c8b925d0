"""Initial weights by laws in NumPy: distributed as Keras's, and the same for a seed."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import ks_2samp

from escala.core.errors import InputError
from escala.engines import layers
from escala.engines.tensorflow.building import begin

KERAS, LAYERS = tf.keras.initializers, tf.keras.layers
#: Arrays of a convolution and of a dense layer, in Keras's layout.
SHAPES = [(3, 3, 16, 32), (120, 60)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("law", "theirs"),
    [
        (layers.GLOROT, KERAS.GlorotUniform(1)),
        (
            layers.variance_scaling(2, "fan_out", "truncated_normal"),
            KERAS.VarianceScaling(2, "fan_out", "truncated_normal", 1),
        ),
        (
            layers.variance_scaling(2, "fan_in", "normal"),
            KERAS.VarianceScaling(2, "fan_in", "untruncated_normal", 1),
        ),
        (layers.uniform(0.05), KERAS.RandomUniform(seed=1)),
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
    begin(model, 5)
    first = model.get_weights()
    # Constants are Keras's, the forget gate's among them; all others are drawn anew.
    assert [np.array_equal(*each) for each in zip(before, first, strict=True)] == [
        *(False, False, False, True),
        *(False, True),
        *(True, True, True, True),
        *(False, True),
    ]
    begin(model, 5)
    assert all(map(np.array_equal, model.get_weights(), first))
    begin(model, 6)
    assert not np.array_equal(model.get_weights()[0], first[0])


def test_an_initialiser_without_a_law_is_refused():
    model = tf.keras.Sequential(
        [LAYERS.Input((3,)), LAYERS.Dense(2, kernel_initializer=KERAS.RandomNormal())]
    )
    with pytest.raises(InputError, match=r"kernel:0 begins by an init.*remove the setting"):
        begin(model, 1)
