"""The division of steps into calls, and several steps in one graph."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from escala.engines.tensorflow.engine import calls
from escala.engines.tensorflow.step import repeat

SIZES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=20)


@given(SIZES, st.integers(1, 5))
def test_calls_keep_the_order_of_steps_and_have_equal_steps(sizes, at_once):
    steps = [[np.arange(rows) for rows in rank_sizes] for rank_sizes in sizes]
    divided = list(calls(steps, at_once))
    assert [id(step) for call in divided for step in call] == [id(step) for step in steps]
    for call in divided:
        assert len(call) in (1, at_once)
        rank_sizes = {tuple(map(len, step)) for step in call}
        assert len(rank_sizes) == 1
        assert len(call) == 1 or 0 not in rank_sizes.pop()


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 3))
def test_equal_steps_are_as_few_calls_as_possible(count, at_once, rows):
    steps = [[np.arange(rows)]] * count
    whole, rest = divmod(count, at_once)
    assert len(list(calls(steps, at_once))) == whole + rest


@pytest.mark.parametrize("count", [1, 2, 5])
def test_repeated_steps_see_the_weights_of_the_step_before(count):
    weight = tf.Variable(1.0)

    def step(rows, divisor):
        before = weight.read_value()
        weight.assign(before * 2 + tf.reduce_sum(rows) / divisor)
        return before, tf.reduce_sum(rows)

    rows = np.arange(3 * count, dtype=np.float32)
    results = tf.function(repeat(step, count))(rows, np.float32(3))
    expected, sums, value = [], [], 1.0
    for step_rows in np.split(rows, count):
        expected.append(value)
        sums.append(step_rows.sum())
        value = value * 2 + step_rows.sum() / 3
    np.testing.assert_allclose([float(each) for each in results], [*expected, *sums])
    assert float(weight) == pytest.approx(value)
