"""Gradients as factors, against those that TensorFlow multiplies out."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from escala.strategies.shared import factors
from escala.workloads.virus_cnn import model as virus_cnn


@pytest.fixture(scope="module")
def model() -> tf.keras.Sequential:
    tf.keras.utils.set_random_seed(0)
    found = virus_cnn.network(100, 3)
    found.add(tf.keras.layers.Dropout(0.0))
    return found


def gradients(model, apart, codes, labels) -> tuple[tf.Tensor, list]:
    with tf.GradientTape() as tape:
        probabilities, seen = factors.forward(model, codes, apart)
        loss = tf.reduce_sum(virus_cnn.row_losses(labels, probabilities, {}))
    return loss, factors.gradients(tape, loss, model.trainable_variables, seen)


def test_multiplied_out_they_are_the_gradients(model):
    random = np.random.default_rng(1)
    codes, labels = random.integers(0, 5, (6, 100), np.uint8), random.integers(0, 3, 6)
    apart = [layer for layer in model.layers if type(layer) is tf.keras.layers.Dense][:2]
    loss, found = gradients(model, apart, codes, labels)
    with tf.GradientTape() as tape:
        expected_loss = tf.reduce_sum(virus_cnn.row_losses(labels, model(codes, training=True), {}))
    expected = tape.gradient(expected_loss, model.trainable_variables)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-6)
    assert sum(isinstance(gradient, factors.Factors) for gradient in found) == 2
    for variable, one, other in zip(model.trainable_variables, found, expected, strict=True):
        assert factors.dense(one).shape == variable.shape
        np.testing.assert_allclose(factors.dense(one), factors.dense(other), rtol=1e-5, atol=1e-7)


def test_rows_of_several_ranks_are_the_sum_of_their_products():
    random = np.random.default_rng(2)
    ranks = [
        factors.Factors(*(random.normal(size=(rows, width)) for width in (5, 3))) for rows in (4, 1)
    ]
    together = factors.Factors(*(np.concatenate(parts) for parts in zip(*ranks, strict=True)))
    summed = sum(rank.product() for rank in ranks)
    np.testing.assert_allclose(together.product(), summed, rtol=1e-12)


@pytest.mark.parametrize(
    ("rows", "ranks", "which"),
    [
        (64, 2, [0]),
        (64, 1, []),
        # 2 · 1536 · 128 = rows · 1664 where rows are 236; 256 KiB before that the saving is small.
        (120, 2, [0]),
        (236, 2, []),
    ],
)
def test_only_layers_that_save_enough_stay_factors(rows, ranks, which):
    model = virus_cnn.network(100, 3)
    layers = [layer for layer in model.layers if type(layer) is tf.keras.layers.Dense]
    assert factors.worthwhile(model, rows, ranks) == [layers[number] for number in which]


def test_what_is_no_chain_of_plain_products_is_summed():
    """Taken apart, it would be computed wrongly."""
    wide = {"units": 256, "activation": "relu"}
    inputs = tf.keras.Input((2000,))
    split = tf.keras.layers.Dense(**wide)(inputs) + tf.keras.layers.Dense(**wide)(inputs)
    assert factors.worthwhile(tf.keras.Model(inputs, split), 8, 2) == []

    def chain(shape: tuple, **options) -> tf.keras.Sequential:
        return tf.keras.Sequential([tf.keras.Input(shape), tf.keras.layers.Dense(**wide | options)])

    assert factors.worthwhile(chain((3, 2000)), 8, 2) == []
    assert factors.worthwhile(chain((2000,), use_bias=False), 8, 2) == []
    assert factors.worthwhile(chain((2000,), activity_regularizer="l2"), 8, 2) == []
    assert len(factors.worthwhile(chain((2000,)), 8, 2)) == 1
