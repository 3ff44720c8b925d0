"""Updates of weights by a compiled loop each, or in one pass, against Keras's own RMSprop."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from escala.engines.tensorflow.fast.dense import Factors
from escala.engines.tensorflow.fast.rmsprop import OnePassRMSprop
from escala.workloads.virus_cnn import model as virus_cnn

RATE, STEPS = 0.01, 50
#: Of the largest value: some ten roundings of float32 in each of 50 steps, which add up at worst.
TOLERANCE = 1e-4
SHAPES = [(7, 16), (3, 5, 2), (1,), (700, 100)]


def gradients(scale: float) -> list[list[tf.Tensor | tf.IndexedSlices | Factors]]:
    """Gradients of some steps; every third time those of the first variable are some of its rows.

    A row is named twice. Those of the last variable are factors.
    """
    random = np.random.default_rng(1)
    found = []
    for step in range(STEPS):
        step_gradients = [
            tf.constant(scale * random.normal(size=s), tf.float32) for s in SHAPES[:-1]
        ]
        if step % 3 == 0:
            shape = tf.constant(SHAPES[0])
            step_gradients[0] = tf.IndexedSlices(
                step_gradients[0][:4], tf.constant([5, 0, 5, 2]), shape
            )
        x, d = random.normal(size=(8, 700)), scale * random.normal(size=(8, 100))
        factors = Factors(tf.constant(x, tf.float32), tf.constant(d, tf.float32))
        found.append([*step_gradients, factors])
    return found


def updating(optimizer: tf.keras.optimizers.Optimizer) -> tuple[list[tf.Variable], tf.function]:
    """Return variables, and what updates them by their gradients."""
    random = np.random.default_rng(0)
    weights = [tf.Variable(random.normal(size=shape).astype(np.float32)) for shape in SHAPES]
    optimizer.build(weights)

    def apply(given):
        if not isinstance(optimizer, OnePassRMSprop):
            given = [each.product() if isinstance(each, Factors) else each for each in given]
        optimizer.apply_gradients(zip(given, weights, strict=True))

    return weights, tf.function(apply)


# Squares of the smaller gradients are of epsilon's size.
@pytest.mark.parametrize("scale", [1.0, 3e-4])
@pytest.mark.parametrize("update", ["fused", "one-pass"])
def test_fifty_steps_are_those_of_keras(update, scale):
    results = []
    own = virus_cnn.optimizer({}, RATE, {"optimizer": update})
    for optimizer in (own, tf.keras.optimizers.RMSprop(RATE)):
        weights, update = updating(optimizer)
        for given in gradients(scale):
            update(given)
        results.append([v.numpy() for v in (*weights, *optimizer.variables)])
    for found, expected in zip(*results, strict=True):
        tolerance = TOLERANCE * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=tolerance)


@pytest.mark.parametrize(("update", "compiled"), [("keras", 0), ("fused", len(SHAPES))])
def test_each_variable_has_a_compiled_loop_if_asked_for(update, compiled):
    _, apply = updating(virus_cnn.optimizer({}, RATE, {"optimizer": update}))
    operations = apply.get_concrete_function(gradients(1.0)[1]).graph.get_operations()
    marked = [op for op in operations if "_XlaMustCompile" in op.node_def.attr]
    assert len(marked) == compiled
