"""Gradients as factors, against those that TensorFlow multiplies out."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from escala.analysis.cost_model.calibration import Gradient
from escala.analysis.cost_model.exchange import Exchange, dense_exchange
from escala.core.errors import Unavailable
from escala.data.base import Arrays, Spec
from escala.engines import costs
from escala.engines.functions import describe_gradients
from escala.engines.tensorflow.fast import dense
from escala.workloads import WORKLOADS
from escala.workloads.mnist_mlp import model as mnist_mlp
from escala.workloads.models import given
from escala.workloads.virus_cnn import model as virus_cnn
from tests.conftest import KNOBS


def virus_model() -> tf.keras.Sequential:
    model = virus_cnn.network(100, 3)
    model.add(tf.keras.layers.Dropout(0.0))
    return model


def mnist_model(**settings) -> tf.keras.Model:
    settings = WORKLOADS["mnist-mlp"].setting_defaults | {"dropout": 0.0} | settings
    return mnist_mlp.build((Spec("image", (8, 8, 1), "uint8"),), (3,), settings, {})


def dense_layers(model: tf.keras.Model) -> list[tf.keras.layers.Dense]:
    return [layer for layer in model.layers if type(layer) is tf.keras.layers.Dense]


def factored_layers(model: tf.keras.Model, rows: int, ranks: int) -> list[tf.keras.layers.Dense]:
    optimizer = tf.keras.optimizers.SGD()
    found = dense.selected(model, optimizer, costs.FACTORS, rows, ranks, one_node=True)
    return [layer for layer, exchange in found.items() if exchange == costs.FACTORS]


def gradients(model, factored, inputs, labels) -> tuple[tf.Tensor, list]:
    kinds = dict.fromkeys(factored, dense.Factors)
    with tf.GradientTape() as tape:
        probabilities, seen = dense.forward(model, inputs, kinds)
        loss = tf.reduce_sum(virus_cnn.row_losses(labels, probabilities, {}))
    return loss, dense.gradients(tape, loss, model.trainable_variables, seen)


@pytest.mark.parametrize(("build", "shape"), [(virus_model, (6, 100)), (mnist_model, (6, 8, 8, 1))])
def test_multiplied_out_they_are_the_gradients(build, shape):
    tf.keras.utils.set_random_seed(0)
    model = build()
    random = np.random.default_rng(1)
    inputs, labels = random.integers(0, 5, shape, np.uint8), random.integers(0, 3, 6)
    layers = dense_layers(model)[:2]
    loss, computed = gradients(model, layers, inputs, labels)
    with tf.GradientTape() as tape:
        outputs = model(inputs, training=True)
        expected_loss = tf.reduce_sum(virus_cnn.row_losses(labels, outputs, {}))
    expected = tape.gradient(expected_loss, model.trainable_variables)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-6)
    assert sum(isinstance(gradient, dense.Factors) for gradient in computed) == 2
    for variable, one, other in zip(model.trainable_variables, computed, expected, strict=True):
        assert dense.dense(one).shape == variable.shape
        np.testing.assert_allclose(dense.dense(one), dense.dense(other), rtol=1e-5, atol=1e-7)


# 2 · 1536 · 128 = rows · 1664 where rows are 236; 256 KiB before that the saving is small.
@pytest.mark.parametrize(("rows", "ranks"), [(64, 1), (32, 2), (60, 2), (118, 2), (8, 8)])
def test_the_cost_model_expects_factors_where_ranks_exchange_them(rows, ranks):
    model, exchange = virus_cnn.network(100, 3), Exchange(dense=costs.FACTORS)
    expected = [
        layer
        for layer in dense_layers(model)
        if ranks > 1
        and dense_exchange(
            Gradient(layer.name, tuple(layer.kernel.shape), factor_rows=1), rows, ranks, exchange
        )
        == costs.FACTORS
    ]
    assert factored_layers(model, rows * ranks, ranks) == expected
    assert expected == dense_layers(model)[: ranks > 1 and rows * ranks < 236]


def wide_models() -> dict[str, tuple[tf.keras.Model, int]]:
    """Return functional models, and how many of their wide dense layers compute one product."""
    layers, inputs = tf.keras.layers, tf.keras.Input((512,))
    hidden, same = layers.Dense(512)(inputs), layers.Dense(512)
    frozen = layers.BatchNormalization()(hidden, training=False)
    second = tf.keras.Input((2, 512))
    some = layers.Dense(512)(tf.boolean_mask(second, second[..., 0] > 0))
    both = hidden + tf.math.reduce_mean(some)
    twice = layers.Dense(512)(tf.reshape(second, (-1, 512)))

    class Doubled(tf.keras.Model):
        def call(self, *arguments, **options):
            return 2 * super().call(*arguments, **options)

    return {
        "two branches": (tf.keras.Model(inputs, hidden * layers.Dense(512)(inputs)), 2),
        "an argument": (tf.keras.Model(inputs, frozen), 1),
        "an operation on two values": (tf.keras.Model(inputs, hidden + 1.0), 1),
        "one layer twice": (tf.keras.Model(inputs, same(same(inputs))), 0),
        "an unknown number of rows": (tf.keras.Model([inputs, second], both), 1),
        "two rows for each": (tf.keras.Model(second, tf.reshape(twice, (-1, 2, 512))), 1),
        "a class of its own": (Doubled(inputs, hidden), 0),
    }


@pytest.mark.parametrize("name", wide_models())
def test_layers_of_functional_models_that_compute_one_product_have_factors(name):
    model, count = wide_models()[name]
    tf.keras.utils.set_random_seed(4)
    random = np.random.default_rng(4)
    shapes = [(6, *each.shape[1:]) for each in model.inputs]
    inputs = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    factored = factored_layers(model, 8, 2)
    assert len(factored) == count

    def computed(factored: list) -> list[np.ndarray]:
        with tf.GradientTape() as tape:
            outputs, seen = dense.forward(
                model, given(inputs), dict.fromkeys(factored, dense.Factors)
            )
            loss = tf.reduce_sum(tf.square(outputs))
        found = dense.gradients(tape, loss, model.trainable_variables, seen)
        assert sum(isinstance(each, dense.Factors) for each in found) == len(factored)
        return [dense.dense(each).numpy() for each in found]

    for one, other in zip(computed(factored), computed([]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)


def test_a_row_that_becomes_several_counts_as_several():
    """2 · 512 · 512 = rows · 1024 where rows are 512, and 256 KiB before that nothing is saved."""
    model, _ = wide_models()["two rows for each"]
    assert len(factored_layers(model, 150, 2)) == 1
    assert factored_layers(model, 256, 2) == []


def test_what_is_no_plain_product_is_summed():
    """With factors, it would be computed wrongly."""

    def factored(shape: tuple = (2000,), **options) -> list:
        layer = tf.keras.layers.Dense(256, activation="relu", **options)
        return factored_layers(tf.keras.Sequential([tf.keras.Input(shape), layer]), 8, 2)

    assert len(factored()) == 1
    assert not factored((3, 2000))
    for option in (
        {"use_bias": False},
        {"activity_regularizer": "l2"},
        {"kernel_regularizer": "l2"},
        {"trainable": False},
    ):
        assert not factored(**option)


def test_a_kernel_with_another_use_has_the_gradient_of_both():
    """A loss that the model adds is no declared regulariser of the layer."""
    inputs = tf.keras.Input((300,))
    layer = tf.keras.layers.Dense(256)
    model = tf.keras.Model(inputs, layer(inputs))
    model.add_loss(lambda: tf.reduce_sum(layer.kernel**2))
    assert factored_layers(model, 8, 2) == [layer]
    values = np.random.default_rng(5).normal(size=(6, 300)).astype(np.float32)

    def computed(kind: type | None) -> np.ndarray:
        kinds = {layer: kind} if kind else {}
        with tf.GradientTape() as tape:
            outputs, seen = dense.forward(model, values, kinds)
            loss = tf.reduce_sum(outputs**2) + tf.add_n(model.losses)
        kernel, _ = dense.gradients(tape, loss, model.trainable_variables, seen)
        return kernel.numpy()

    np.testing.assert_allclose(computed(dense.Factors), computed(None), rtol=1e-4, atol=1e-3)
    with pytest.raises(Unavailable, match=r"uses the kernel .* twice"):
        computed(dense.InMemory)


def test_a_calibration_is_told_which_gradients_are_factors_or_rows(small_split, request_for):
    training = request_for("single", "1x1")["training"]
    embedding, *others = describe_gradients(
        {
            "engine": "tensorflow",
            "workload": "virus-cnn",
            "split": str(small_split),
            "training": training,
            "knobs": KNOBS,
        }
    )
    assert embedding["sparse_rows"] == Arrays(small_split).inputs[0].shape[0]
    assert {each["sparse_rows"] for each in others} == {None}
    kernels = [each["factor_rows"] for each in others[::2]]
    assert kernels == [None, None, 1, 1, 1], "two convolutions, three dense layers"
    assert {each["factor_rows"] for each in (embedding, *others[1::2])} == {None}
