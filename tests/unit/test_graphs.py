"""Control flow on tensors in the code of a workload, against the same code without graphs."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from escala.data.base import Spec
from escala.engines.tensorflow.engine import TensorFlow
from escala.engines.tensorflow.fast.dense import DenseLayers
from escala.engines.tensorflow.functions import Functions
from escala.engines.tensorflow.ranks import Ranks
from escala.engines.tensorflow.step import local_sum, make_compute, no_exchange, train_step
from escala.predict.model import load
from escala.workloads import models
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


def steps_of_rows() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the rows of each step, smaller than those of the step before, with their means."""
    random = np.random.default_rng(0)
    sizes = np.geomspace(8, 0.1, STEPS, dtype=np.float32)
    numbers = [size * random.normal(size=(ROWS, 4)).astype(np.float32) for size in sizes]
    return [(each, each.mean(axis=1)) for each in numbers]


def network() -> tf.keras.Model:
    given = tf.keras.Input((4,))
    outputs = tf.keras.layers.Dense(1, kernel_initializer=tf.keras.initializers.Constant(0.1))
    return tf.keras.Model(given, tf.keras.layers.Reshape(())(outputs(Damped()(given))))


def generate(model, inputs, settings):
    outputs = model(inputs[0], training=False)
    if tf.reduce_mean(outputs) > settings["large"]:
        return outputs + 100
    return outputs - 100


@pytest.mark.parametrize("size", [0.01, 10.0], ids=["small", "large"])
def test_control_flow_where_predictions_are_generated_may_depend_on_tensors(
    tmp_path, monkeypatch, size
):
    """In the evaluation of a run, and by the model that it kept."""
    work = SimpleNamespace(
        row_losses=row_losses, correct=correct, generate=generate, build=lambda *_: network()
    )
    numbers = np.full((ROWS, 4), size, np.float32)
    expected = generate(network(), [numbers], SETTINGS)
    evaluate = Functions(work, SETTINGS).compile_evaluation(network(), SPECS, tf.reduce_sum)
    np.testing.assert_allclose(evaluate(numbers, numbers[:, 0])[0], expected, rtol=1e-5)
    np.savez(tmp_path / models.WEIGHTS, *network().get_weights())
    array = {"name": "numbers", "shape": [4], "dtype": "float32"}
    data = {"inputs": [array], "targets": array | {"shape": []}, "sha256": {}}
    models.describe(tmp_path, "mlp", {}, SETTINGS, data, "")
    monkeypatch.setattr("escala.predict.model.workload", lambda *_: work)
    np.testing.assert_allclose(load(tmp_path).predictions(numbers), expected, rtol=1e-5)


def test_control_flow_of_a_workload_may_depend_on_tensors():
    model, reference, rows = network(), network(), steps_of_rows()
    functions = Functions(WORK, SETTINGS)
    compute = make_compute(model, functions, {}, [], local_sum)
    optimizer, single = tf.keras.optimizers.SGD(RATE), Ranks(KNOBS, None)
    layers = DenseLayers(model, optimizer, ALONE, single)
    step = train_step(layers, single, DATA, compute, no_exchange)
    evaluate = functions.compile_evaluation(model, SPECS, tf.reduce_sum)
    taken = set()
    for numbers, targets in rows:
        with tf.GradientTape() as tape:
            outputs = reference(numbers)
            expected = tf.reduce_sum(row_losses(targets, outputs, SETTINGS))
            mean = expected / ROWS
        taken.add((np.abs(numbers).max() < 1, np.abs(targets - outputs).max() > LARGE))
        predictions, sums = evaluate(numbers, targets)
        np.testing.assert_allclose(predictions, predict(outputs), rtol=1e-5)
        scores = {"loss": expected, "correct": tf.reduce_sum(correct(targets, outputs))}
        scores["offset"] = tf.reduce_sum(row_scores(targets, outputs)["offset"])
        expectation = {name: float(value) for name, value in scores.items()}
        assert sums == pytest.approx(expectation, rel=1e-5)
        loss, _ = step([(numbers, targets, np.ones(ROWS, np.float32), np.float32(ROWS))])
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        gradients = tape.gradient(mean, reference.trainable_variables)
        for variable, gradient in zip(reference.trainable_variables, gradients, strict=True):
            variable.assign_sub(RATE * gradient)
    for variable, value in zip(model.variables, reference.variables, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-5)
    assert {large for _, large in taken} == {small for small, _ in taken} == {False, True}


class Noting(tf.keras.optimizers.SGD):
    """Notes when it updates a variable."""

    def __init__(self, events: list):
        super().__init__(RATE)
        self.events = events

    def apply_gradients(self, grads_and_vars):
        for gradient, variable in grads_and_vars:
            tf.numpy_function(lambda: self.events.append("update"), [], [])
            variable.assign_sub(RATE * gradient)


def test_an_update_waits_for_the_last_gradient():
    """Otherwise it takes the core from the backward pass that computes the others."""
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)])
    events: list[str] = []
    layers = DenseLayers(model, Noting(events), ALONE, Ranks(KNOBS, None))

    def last(ones):
        time.sleep(0.2)
        events.append("last gradient")
        return ones

    @tf.function(autograph=False)
    def step(ones):
        kernel, bias = model.trainable_variables
        late = tf.numpy_function(last, [ones], tf.float32, stateful=False)
        late.set_shape(bias.shape)
        layers.update([tf.ones(kernel.shape), late])

    for _ in range(3):
        step(tf.ones(2))
    assert events == ["last gradient", "update", "update"] * 3


def test_what_steps_change_is_put_back_where_one_fails():
    weight = tf.Variable(1.0)
    engine = TensorFlow({}, Ranks(KNOBS, None))
    engine._state = SimpleNamespace(changed=[weight])
    with pytest.raises(ArithmeticError), engine.preserve():
        weight.assign(2.0)
        raise ArithmeticError
    assert float(weight) == 1
