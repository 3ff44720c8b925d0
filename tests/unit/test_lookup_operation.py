"""Lookups by an operation in C++, against sums and maxima that NumPy takes one by one."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from test_operations import offered

from escala.engines.tensorflow.fast.lookup import look_up

#: Of the largest value: sums of up to some hundred float32 numbers in another order.
TOLERANCE = 1e-5
INSTRUCTIONS = [name for name in offered() if name != "avx512f"]


def expected(codes, tables, alphabet, k, stride, pool, upstream):
    """Return the values, and the gradient of their product with `upstream`, in float64."""
    tables = tables.astype(np.float64)
    taps = len(tables)
    places = codes.shape[1] - k + 1
    seen = (places - 1) // stride + 1
    positions = max(seen - taps + 1, 0) // pool
    values = np.zeros((len(codes), positions, tables.shape[2]))
    gradient = np.zeros_like(tables)
    digits = alphabet ** np.arange(k - 1, -1, -1)
    for row, letters in enumerate(codes.astype(int)):
        number = [letters[at : at + k] @ digits for at in range(places)]
        for position in range(positions):
            read = [
                [number[stride * (pool * position + j + t)] for t in range(taps)]
                for j in range(pool)
            ]
            sums = np.array([sum(tables[t, n] for t, n in enumerate(addends)) for addends in read])
            values[row, position] = np.maximum(sums.max(axis=0), 0)
            for column, j in enumerate(sums.argmax(axis=0)):
                if sums[j, column] > 0:
                    for t, n in enumerate(read[j]):
                        gradient[t, n, column] += upstream[row, position, column]
    return values, gradient


def found(codes, tables, upstream, *settings, instructions="auto"):
    tables = tf.constant(tables)
    with tf.GradientTape() as tape:
        tape.watch(tables)
        values = look_up(tf.constant(codes), tables, *settings, instructions)
        product = tf.reduce_sum(values * upstream)
    return values.numpy(), tape.gradient(product, tables).numpy()


@settings(max_examples=40)
@given(
    alphabet=st.integers(1, 5),
    k=st.integers(1, 3),
    taps=st.integers(1, 3),
    stride=st.integers(1, 3),
    pool=st.integers(1, 3),
    filters=st.sampled_from([1, 5, 8, 16, 17, 40]),
    rows=st.integers(0, 3),
    extra=st.integers(0, 7),
    instructions=st.sampled_from(INSTRUCTIONS),
    seed=st.integers(0, 2**16),
)
def test_values_and_gradients_are_those_of_numpy(
    alphabet, k, taps, stride, pool, filters, rows, extra, instructions, seed
):
    random = np.random.default_rng(seed)
    length = k + stride * (taps + pool - 2) + extra
    codes = random.integers(0, alphabet, (rows, length)).astype(np.uint8)
    tables = random.normal(size=(taps, alphabet**k, filters)).astype(np.float32)
    seen = (length - k) // stride + 1
    upstream = random.normal(size=(rows, (seen - taps + 1) // pool, filters)).astype(np.float32)
    asked = alphabet, k, stride, pool
    wanted = expected(codes, tables, *asked, upstream)
    for one, other in zip(
        found(codes, tables, upstream, *asked, instructions=instructions), wanted, strict=True
    ):
        assert one.shape == other.shape
        scale = np.abs(other).max(initial=0)
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE * scale)


def test_wider_vectors_give_the_same_values():
    random = np.random.default_rng(0)
    codes = random.integers(0, 5, (4, 60)).astype(np.uint8)
    tables = random.normal(size=(2, 125, 40)).astype(np.float32)
    upstream = np.ones((4, 14, 40), np.float32)
    first, *others = [
        found(codes, tables, upstream, 5, 3, 2, 2, instructions=name) for name in INSTRUCTIONS
    ]
    for other in others:
        np.testing.assert_equal(first, other)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("tap", [0, 1])
def test_what_is_not_a_number_stays_so(tap, instructions):
    """So the loss of a diverged model is not finite, and its run ends."""
    tables = np.ones((2, 4, 16), np.float32)
    tables[tap, 2] = np.nan
    codes = np.array([[0, 2, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], np.uint8)
    values = look_up(tf.constant(codes), tf.constant(tables), 4, 1, 1, 2, instructions).numpy()
    assert np.isnan(values[0, 0]).all() and np.isfinite(values[1]).all()


def test_a_code_outside_the_alphabet_is_refused():
    tables, codes = np.ones((1, 4, 8), np.float32), np.array([[0, 1, 4, 3]], np.uint8)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in an alphabet of 4"):
        look_up(tf.constant(codes), tf.constant(tables), 4, 1, 1, 1)


def test_the_number_of_positions_is_known_before_there_are_rows():
    @tf.function(input_signature=[tf.TensorSpec((None, 60), tf.uint8)])
    def traced(codes):
        return look_up(codes, tf.ones((2, 125, 40)), 5, 3, 2, 2)

    assert traced.get_concrete_function().output_shapes.as_list() == [None, 14, 40]
