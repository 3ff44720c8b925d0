"""Convolutions by lookup against the plain Keras layers, which know nothing of tables."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.keras import layers

from escala.engines.tensorflow.fast.lookup import TABLE_BYTES, Lookup
from escala.training.process import digest
from escala.workloads.virus_cnn import model as virus_cnn

#: Of the largest value: sums of some hundred float32 numbers, taken in another order.
TOLERANCE = 1e-5


def plain(
    alphabet: int, filters: tuple[int, int], kernels: tuple[int, int], pools: tuple[int, int]
) -> list[layers.Layer]:
    """The layers of a stem; alphabet, filters, kernels and pools of the first and the second."""
    return [
        layers.Embedding(alphabet, 3),
        layers.Conv1D(filters[0], kernels[0], activation="relu"),
        layers.MaxPool1D(pools[0]),
        layers.Conv1D(filters[1], kernels[1], activation="relu"),
        layers.MaxPool1D(pools[1]),
    ]


def network(stem: list[layers.Layer], length: int) -> tf.keras.Model:
    return tf.keras.Sequential([layers.Input((length,), dtype="uint8"), *stem])


def drawn(model: tf.keras.Model, random: np.random.Generator) -> list[np.ndarray]:
    """Weights of a model drawn anew, biases too, which begin as 0; none makes values grow."""
    return [
        random.normal(0, 1 / np.sqrt(np.prod(w.shape[:-1])), w.shape).astype(np.float32)
        for w in model.get_weights()
    ]


def letters(random: np.random.Generator, rows: int, length: int, alphabet: int = 5) -> np.ndarray:
    return random.integers(0, alphabet, (rows, length)).astype(np.uint8)


def results(model: tf.keras.Model, codes: np.ndarray, upstream: np.ndarray) -> list[np.ndarray]:
    """Output, and the gradient of its product with `upstream` by every weight, dense."""
    with tf.GradientTape() as tape:
        output = model(codes, training=True)
        product = tf.reduce_sum(output * upstream)
    gradients = tape.gradient(product, model.trainable_variables)
    return [array.numpy() for array in (output, *map(tf.convert_to_tensor, gradients))]


def assert_same(found_of: tf.keras.Model, expected_of: tf.keras.Model, codes: np.ndarray) -> None:
    """Assert equal outputs and gradients at weights that are drawn anew."""
    random = np.random.default_rng(len(codes))
    expected_of.set_weights(drawn(expected_of, random))
    found_of.set_weights(expected_of.get_weights())
    upstream = random.normal(size=expected_of(codes).shape).astype(np.float32)
    assert_equal(results(found_of, codes, upstream), results(expected_of, codes, upstream))


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * np.abs(other).max())


sizes = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=20)
@given(
    alphabet=st.integers(1, 5),
    filters=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    kernels=sizes,
    pools=sizes,
    extra=st.integers(0, 9),
    table_bytes=st.sampled_from([2**14, TABLE_BYTES, 2**26]),
    operation=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_outputs_and_gradients_are_those_of_the_plain_layers(
    alphabet, filters, kernels, pools, extra, table_bytes, operation, seed
):
    random = np.random.default_rng(seed)
    shortest = kernels[0] - 1 + pools[0] * (kernels[1] - 1 + pools[1])
    codes = letters(random, 3, shortest + extra, alphabet)
    lookup = Lookup(plain(alphabet, filters, kernels, pools), table_bytes, operation)
    expected_of = network(plain(alphabet, filters, kernels, pools), codes.shape[1])
    assert_same(network([lookup], codes.shape[1]), expected_of, codes)


@pytest.mark.parametrize("length", [36, 39])
@pytest.mark.parametrize(
    ("way", "table_bytes"),
    [("lookup-table", TABLE_BYTES), ("lookup-table", 2**16), ("lookup-operation", TABLE_BYTES)],
)
def test_the_networks_convolutions_at_odd_and_even_lengths(length, way, table_bytes, monkeypatch):
    random = np.random.default_rng(length)
    expected_of = virus_cnn.network(length, 5)
    found_of = virus_cnn.network(length, 5, way)
    found_of.layers[0].table_bytes = table_bytes
    assert found_of.layers[0].looks_up
    expected_of.set_weights(drawn(expected_of, random))
    found_of.set_weights(expected_of.get_weights())
    codes, upstream = letters(random, 7, length), random.normal(size=(7, 5)).astype(np.float32)
    expected = results(expected_of, codes, upstream)
    # Nothing is convolved a second time.
    monkeypatch.setattr(found_of.layers[0].stem[3], "call", None)
    assert_equal(results(found_of, codes, upstream), expected)


@pytest.mark.parametrize("operation", [False, True])
def test_repeated_letters_share_one_maximum_as_in_the_plain_layers(operation):
    """All values of a pool are equal: its gradient goes to one of them, once."""
    expected_of = network(plain(4, (3, 3), (2, 2), (3, 3)), 40)
    found_of = network([Lookup(plain(4, (3, 3), (2, 2), (3, 3)), operation=operation)], 40)
    random = np.random.default_rng(0)
    expected_of.set_weights([np.abs(w) for w in drawn(expected_of, random)])
    found_of.set_weights(expected_of.get_weights())
    codes = np.repeat(np.arange(4, dtype=np.uint8)[:, np.newaxis], 40, axis=1)
    upstream = np.ones(expected_of(codes).shape, np.float32)
    expected = results(expected_of, codes, upstream)
    assert all(np.abs(array).max() > 0 for array in expected)
    assert_equal(results(found_of, codes, upstream), expected)


def test_weights_have_the_same_names_shapes_order_and_initial_values():
    models = []
    for stem in ("layers", "lookup-table", "lookup-operation"):
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(4)
        models.append(virus_cnn.network(1000, 5, stem))
    by_layers, *others = models
    assert by_layers.count_params() == 2_067_181
    for by_lookup in others:
        assert [each.name for each in by_lookup.weights] == [
            each.name for each in by_layers.weights
        ]
        assert digest(by_lookup.get_weights()) == digest(by_layers.get_weights())
        assert by_lookup.output_shape == by_layers.output_shape


def conv(filters: int, **options) -> layers.Layer:
    return layers.Conv1D(filters, 2, **{"activation": "relu"} | options)


def with_layer(place: int, layer: layers.Layer) -> list[layers.Layer]:
    stem = plain(5, (4, 3), (2, 2), (2, 2))
    stem[place] = layer
    return stem


FALL_BACKS = {
    "a long kernel": plain(5, (4, 3), (9, 2), (2, 2)),
    "padding": with_layer(1, conv(4, padding="same")),
    "strides": with_layer(3, conv(3, strides=2)),
    "dilation": with_layer(1, conv(4, dilation_rate=2)),
    "tanh": with_layer(3, conv(3, activation="tanh")),
    "no bias": with_layer(1, conv(4, use_bias=False)),
    "overlapping pools": with_layer(2, layers.MaxPool1D(3, strides=2)),
    "padded pools": with_layer(4, layers.MaxPool1D(2, padding="same")),
    "averages": with_layer(2, layers.AveragePooling1D(2)),
}


@pytest.mark.parametrize("case", FALL_BACKS)
def test_what_has_no_small_tables_is_computed_by_the_layers(case):
    stem = FALL_BACKS[case]
    lookup = Lookup(stem)
    found_of = network([lookup], 31)
    assert not lookup.looks_up
    expected_of = network([type(layer).from_config(layer.get_config()) for layer in stem], 31)
    assert_same(found_of, expected_of, letters(np.random.default_rng(3), 4, 31))


def test_the_limit_is_what_the_largest_table_takes():
    """125 k-mers, four columns, four bytes each."""
    stem, takes = plain(5, (4, 3), (2, 2), (2, 2)), 4 * 4 * 5**3
    assert [Lookup(stem, limit).looks_up for limit in (takes, takes - 1)] == [True, False]


@pytest.mark.parametrize("table_bytes", [TABLE_BYTES, 2**12])
def test_a_code_beyond_the_alphabet_is_refused(table_bytes):
    model = network([Lookup(plain(5, (4, 3), (2, 2), (2, 2)), table_bytes)], 31)
    codes = np.ones((2, 31), np.uint8)
    codes[1, 5] = 5
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[1,5\] = 5 is not in \[0, 5\)"):
        model(codes)
