"""Steps of TensorFlow: control flow of workloads, calls of several steps, times of collectives."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from escala.data.base import Spec
from escala.engines.tensorflow.engine import TensorFlow, group_steps
from escala.engines.tensorflow.fast.dense import DenseLayers
from escala.engines.tensorflow.functions import Functions
from escala.engines.tensorflow.ranks import Ranks
from escala.engines.tensorflow.step import make_compute, repeat, train_step
from tests.conftest import KNOBS

STEPS, ROWS, RATE, LARGE = 8, 12, 0.05, 0.5
#: The plan of one rank, as far as its layers need it.
ALONE = {"ranks": 1, "knobs": {"accumulation": 1}}


class Damped(tf.keras.layers.Layer):
    """Halve rows until no number is above 2; add 1 to rows without a number above 1."""

    def call(self, rows):
        if tf.reduce_max(tf.abs(rows)) < 1:
            return rows + 1
        while tf.reduce_max(tf.abs(rows)) > 2:
            rows = rows / 2
        return rows


def row_losses(targets, outputs, settings):
    errors = targets - outputs
    if tf.reduce_max(tf.abs(errors)) > settings["large"]:
        return tf.abs(errors)
    return tf.square(errors)


def correct(targets, outputs):
    hits = tf.zeros_like(outputs)
    for width in tf.range(1.0, 3.0):
        hits += tf.cast(tf.abs(targets - outputs) < width, tf.float32) / 2
    return hits


def row_scores(targets, outputs):
    if tf.reduce_mean(outputs) > 0:
        return {"offset": outputs - targets}
    return {"offset": targets - outputs}


def predict(outputs):
    if tf.reduce_mean(outputs) > 0:
        outputs = outputs + 100
    return outputs


WORK = SimpleNamespace(
    row_losses=row_losses, correct=correct, row_scores=row_scores, predict=predict
)
SETTINGS = {"large": LARGE}
DATA = SimpleNamespace(
    inputs=(Spec("numbers", (4,), "float32"),), targets=Spec("number", (), "float32")
)
SPECS = (*DATA.inputs, DATA.targets)


def network() -> tf.keras.Model:
    given = tf.keras.Input((4,))
    outputs = tf.keras.layers.Dense(1, kernel_initializer=tf.keras.initializers.Constant(0.1))
    return tf.keras.Model(given, tf.keras.layers.Reshape(())(outputs(Damped()(given))))


def test_control_flow_of_a_workload_may_depend_on_tensors():
    """Against the same code without graphs, on rows that become smaller."""
    random = np.random.default_rng(0)
    sizes = np.geomspace(8, 0.1, STEPS, dtype=np.float32)
    model, reference, functions = network(), network(), Functions(WORK, SETTINGS)
    compute = make_compute(model, functions, {}, [], Ranks({}, None).sum_over_ranks)
    optimizer, single = tf.keras.optimizers.SGD(RATE), Ranks(KNOBS, None)
    layers = DenseLayers(model, optimizer, ALONE, single)
    step = train_step(layers, single, DATA, compute, single.exchange)
    evaluate = functions.compile_evaluation(model, SPECS, tf.reduce_sum)
    taken = set()
    for size in sizes:
        numbers = size * random.normal(size=(ROWS, 4)).astype(np.float32)
        targets = numbers.mean(axis=1)
        with tf.GradientTape() as tape:
            outputs = reference(numbers)
            expected = tf.reduce_sum(row_losses(targets, outputs, SETTINGS))
            mean = expected / ROWS
        taken.add((np.abs(numbers).max() < 1, np.abs(targets - outputs).max() > LARGE))
        predictions, sums = evaluate(numbers, targets)
        np.testing.assert_allclose(predictions, predict(outputs), rtol=1e-5)
        scores = {"loss": expected, "correct": tf.reduce_sum(correct(targets, outputs))}
        scores["offset"] = tf.reduce_sum(row_scores(targets, outputs)["offset"])
        assert sums == pytest.approx({name: float(v) for name, v in scores.items()}, rel=1e-5)
        loss, _ = step([(numbers, targets, np.ones(ROWS, np.float32), np.float32(ROWS))])
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        gradients = tape.gradient(mean, reference.trainable_variables)
        for variable, gradient in zip(reference.trainable_variables, gradients, strict=True):
            variable.assign_sub(RATE * gradient)
    for variable, value in zip(model.variables, reference.variables, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-5)
    assert {large for _, large in taken} == {small for small, _ in taken} == {False, True}


def test_what_steps_change_is_put_back_where_one_fails():
    weight = tf.Variable(1.0)
    engine = TensorFlow({}, Ranks(KNOBS, None))
    engine.model = SimpleNamespace(variables=[weight])
    engine.optimizer, engine._dense = SimpleNamespace(variables=[]), SimpleNamespace(local=[])
    with pytest.raises(ArithmeticError), engine.preserve():
        weight.assign(2.0)
        raise ArithmeticError
    assert float(weight) == 1


SIZES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=20)


@given(SIZES, st.integers(1, 5))
def test_calls_keep_the_order_of_steps_and_have_equal_steps(sizes, at_once):
    steps = [[np.arange(rows) for rows in rank_sizes] for rank_sizes in sizes]
    divided = list(group_steps(steps, at_once))
    assert [id(step) for call in divided for step in call] == [id(step) for step in steps]
    for call in divided:
        assert len(call) in (1, at_once)
        rank_sizes = {tuple(map(len, step)) for step in call}
        assert len(rank_sizes) == 1
        assert len(call) == 1 or 0 not in rank_sizes.pop()
    # Equal steps are as few calls as possible.
    equal = [[np.arange(1)]] * len(sizes)
    assert len(list(group_steps(equal, at_once))) == sum(divmod(len(sizes), at_once))


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


SLEEP = 0.02


@pytest.fixture
def sleeping():
    """A call that sleeps, and how often it did; TensorFlow may move or leave out what it calls."""
    calls = []

    def sleep(values):
        calls.append(1)
        time.sleep(SLEEP)
        return values

    class Sleeping(Ranks):
        def start(self):
            return [0], 1

        def sum_over_ranks(self, values, name):
            return tf.numpy_function(sleep, [values], tf.float32, stateful=False)

    return Sleeping({}, None).collective("allreduce", 16), calls


def test_every_call_is_made_and_its_time_is_inside_that_of_python(sleeping):
    call, calls = sleeping
    for number in range(1, 4):
        before = time.perf_counter()
        found = call()
        assert SLEEP <= found <= time.perf_counter() - before
        assert len(calls) == number


@pytest.mark.parametrize("corrected", [-3600.0, 3600.0])
def test_a_corrected_clock_does_not_change_a_time(monkeypatch, sleeping, corrected):
    stamps = itertools.cycle([0.0, corrected])
    monkeypatch.setattr(tf, "timestamp", lambda: tf.constant(next(stamps), tf.float64))
    before = time.perf_counter()
    found = sleeping[0]()
    assert SLEEP <= found <= time.perf_counter() - before
