"""Which exchange a dense layer has, what ranks receive for it, and gradients as factors."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from escala.analysis.cost_model.calibration import Gradient
from escala.analysis.cost_model.exchange import Exchange, dense_exchange
from escala.core.errors import Unavailable
from escala.data.base import Arrays
from escala.engines import costs
from escala.engines.functions import describe_gradients
from escala.engines.tensorflow.fast import dense
from escala.engines.tensorflow.fast.shared_memory import can_be_shared, partition
from escala.workloads.models import as_model_input
from escala.workloads.virus_cnn import model as virus_cnn
from tests.conftest import KNOBS


@given(rows=st.integers(1, 10_000), ranks=st.integers(1, 64))
def test_the_parts_are_even_disjoint_and_complete(rows, ranks):
    sizes = partition(rows, ranks)
    assert len(sizes) == ranks and sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


def test_kernels_that_cannot_be_updated_in_parts():
    layer = wide_and_narrow().layers[0]
    optimizers = tf.keras.optimizers

    Own = type("Own", (optimizers.SGD,), {})
    assert can_be_shared(optimizers.SGD(), layer, 2000)
    assert not can_be_shared(optimizers.SGD(), layer, 2001)
    assert not can_be_shared(Own(), layer, 2)
    assert not can_be_shared(optimizers.legacy.SGD(), layer, 2)
    assert not can_be_shared(optimizers.Adafactor(), layer, 2)
    assert not can_be_shared(optimizers.SGD(clipnorm=1.0), layer, 2)
    assert can_be_shared(optimizers.SGD(clipvalue=1.0), layer, 2)
    assert not can_be_shared(optimizers.SGD(global_clipnorm=1.0), layer, 2)
    assert not can_be_shared(optimizers.SGD(use_ema=True), layer, 2)
    layer.kernel_constraint = tf.keras.constraints.MaxNorm()
    assert not can_be_shared(optimizers.SGD(), layer, 2)


def received(exchange: str, product: costs.Product, ranks: int) -> list[float]:
    """Return the bytes that each rank receives, counted matrix by matrix."""
    inputs, outputs, rows, number_bytes = product
    found = []
    for rank in range(ranks):
        columns, mine = (np.full(ranks, n // ranks) for n in (inputs, rows))
        others = np.arange(ranks) != rank
        numbers = {
            # A ring receives each part of the sum but one, and then each sum but one.
            "allreduce": 2 * (ranks - 1) * inputs * outputs / ranks,
            "factors": mine[others].sum() * (inputs + outputs),
            "shared-memory": mine[others].sum() * (columns[rank] + outputs),
        }
        found.append(number_bytes * numbers[exchange])
    return found


@pytest.mark.parametrize("exchange", costs.EXCHANGES)
@given(
    ranks=st.sampled_from([1, 2, 4, 8]),
    sizes=st.tuples(*[st.integers(1, 100)] * 2),
    outputs=st.integers(1, 50),
)
def test_the_bytes_are_those_of_the_matrices(exchange, ranks, sizes, outputs):
    inputs, rows = (8 * size for size in sizes)
    product = costs.Product(inputs, outputs, rows)
    expected = received(exchange, product, ranks)
    assert costs.count_received_bytes(exchange, product, ranks) == pytest.approx(expected[0])
    assert max(expected) == pytest.approx(min(expected))


def wide_and_narrow(dtype: str = "float32") -> tf.keras.Model:
    layers = [
        tf.keras.Input((2000,), dtype=dtype),
        tf.keras.layers.Dense(256, name="wide", dtype=dtype),
        tf.keras.layers.Dense(8, name="narrow", dtype=dtype),
    ]
    return tf.keras.Sequential(layers)


@pytest.mark.parametrize(
    ("wanted", "optimizer", "dtype", "wide"),
    [
        ("factors", "SGD", "float32", "factors"),
        ("factors", "Adafactor", "float64", "factors"),
        ("shared-memory", "SGD", "float32", "shared-memory"),
        ("shared-memory", "Adafactor", "float32", "allreduce"),
        ("shared-memory", "SGD", "float64", "allreduce"),
    ],
)
def test_each_layer_has_the_exchange_it_can_have(wanted, optimizer, dtype, wide):
    for one_node in (True, False):
        model, built = wide_and_narrow(dtype), getattr(tf.keras.optimizers, optimizer)()
        # Of two ranks with eight rows together.
        found = dense.select_exchanges(model, built, wanted, 8, 2, one_node)
        found = {layer.name: exchange for layer, exchange in found.items()}
        possible = one_node or wanted != "shared-memory"
        assert found == {"wide": wide if possible else "allreduce", "narrow": "allreduce"}


def test_a_layer_that_receives_several_rows_for_each_is_not_shared():
    reshaped = tf.keras.layers.Lambda(lambda values: tf.reshape(values, (-1, 4000)))
    layers = [tf.keras.Input((8000,)), reshaped, tf.keras.layers.Dense(640, name="large")]
    model, optimizer = tf.keras.Sequential(layers), tf.keras.optimizers.SGD()
    for wanted, exchange in ((costs.SHARED_MEMORY, costs.ALLREDUCE), (costs.FACTORS,) * 2):
        assert [*dense.select_exchanges(model, optimizer, wanted, 64, 2, True).values()] == [
            exchange
        ]


def dense_layers(model: tf.keras.Model) -> list[tf.keras.layers.Dense]:
    return [layer for layer in model.layers if type(layer) is tf.keras.layers.Dense]


def factored_layers(model: tf.keras.Model, rows: int, ranks: int) -> list[tf.keras.layers.Dense]:
    optimizer = tf.keras.optimizers.SGD()
    found = dense.select_exchanges(model, optimizer, costs.FACTORS, rows, ranks, one_node=True)
    return [layer for layer, exchange in found.items() if exchange == costs.FACTORS]


def computed(model, inputs, factored=(), kind=dense.Factors, loss=None) -> tuple[list, list]:
    """Return the gradients of a loss, and those of them as arrays."""
    tf.keras.utils.set_random_seed(4)
    with tf.GradientTape() as tape:
        outputs, seen = dense.forward(model, inputs, dict.fromkeys(factored, kind))
        total = loss(outputs) if loss else tf.reduce_sum(tf.square(outputs))
        total += tf.add_n(model.losses) if model.losses else 0
    found = dense.gradients(tape, total, model.trainable_variables, seen)
    return found, [dense.dense(each).numpy() for each in found]


def test_multiplied_out_they_are_the_gradients():
    model, random = virus_cnn.network(100, 3), np.random.default_rng(1)
    inputs, labels = random.integers(0, 5, (6, 100), np.uint8), random.integers(0, 3, 6)

    def loss(outputs):
        return tf.reduce_sum(virus_cnn.row_losses(labels, outputs, {}))

    kinds, found = computed(model, inputs, dense_layers(model)[:2], loss=loss)
    assert sum(isinstance(gradient, dense.Factors) for gradient in kinds) == 2
    with tf.GradientTape() as tape:
        total = loss(model(inputs, training=True))
    expected = tape.gradient(total, model.trainable_variables)
    for variable, one, other in zip(model.trainable_variables, found, expected, strict=True):
        assert one.shape == variable.shape
        np.testing.assert_allclose(one, dense.dense(other), rtol=1e-5, atol=1e-7)


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
    random = np.random.default_rng(4)
    shapes = [(6, *each.shape[1:]) for each in model.inputs]
    inputs = as_model_input([random.normal(size=shape).astype(np.float32) for shape in shapes])
    factored = factored_layers(model, 8, 2)
    kinds, found = computed(model, inputs, factored)
    assert sum(isinstance(each, dense.Factors) for each in kinds) == len(factored) == count
    for one, other in zip(found, computed(model, inputs)[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)


def test_a_row_that_becomes_several_counts_as_several():
    """2 · 512 · 512 = rows · 1024 where rows are 512, and 256 KiB before that nothing is saved."""
    model, _ = wide_models()["two rows for each"]
    assert len(factored_layers(model, 150, 2)) == 1
    assert factored_layers(model, 256, 2) == []


def test_what_is_no_plain_product_is_summed():
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
    inputs, layer = tf.keras.Input((300,)), tf.keras.layers.Dense(256)
    model = tf.keras.Model(inputs, layer(inputs))
    model.add_loss(lambda: tf.reduce_sum(layer.kernel**2))
    assert factored_layers(model, 8, 2) == [layer]
    values = np.random.default_rng(5).normal(size=(6, 300)).astype(np.float32)
    [one, _], [other, _] = computed(model, values, [layer])[1], computed(model, values)[1]
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)
    with pytest.raises(Unavailable, match=r"uses the kernel .* twice"):
        computed(model, values, [layer], dense.InMemory)


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
