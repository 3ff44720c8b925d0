"""The update of weights by one operation each, against Keras's own RMSprop."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from escala.workloads import virus_cnn
from escala.workloads.fused import FusedRMSprop

STEPS = 50
#: Of each value: some ten roundings of float32 in each of 50 steps, which add up at worst.
TOLERANCE = 1e-4
SHAPES = [(7, 16), (3, 5, 2), (1,)]


def variables() -> list[tf.Variable]:
    random = np.random.default_rng(0)
    return [tf.Variable(random.normal(size=shape).astype(np.float32)) for shape in SHAPES]


def gradients(steps: int, scale: float) -> list[list[tf.Tensor | tf.IndexedSlices]]:
    """Gradients of some steps; every third time those of the first variable are some of its rows.

    A row is named twice.
    """
    random = np.random.default_rng(1)
    found = []
    for step in range(steps):
        of_step = [tf.constant(scale * random.normal(size=s), tf.float32) for s in SHAPES]
        if step % 3 == 0:
            of_step[0] = tf.IndexedSlices(
                of_step[0][:4], tf.constant([5, 0, 5, 2]), tf.constant(SHAPES[0])
            )
        found.append(of_step)
    return found


def updated(optimizer: tf.keras.optimizers.Optimizer, steps: list[list]) -> list[np.ndarray]:
    """Return the weights, and the mean squares that the optimizer keeps, after some steps."""
    weights = variables()
    optimizer.build(weights)
    apply = tf.function(lambda given: optimizer.apply_gradients(zip(given, weights, strict=True)))
    for step, given in enumerate(steps):
        if step == STEPS // 2:
            optimizer.learning_rate = optimizer.learning_rate / 2
        apply(given)
    return [v.numpy() for v in (*weights, *optimizer._velocities)]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("scale", "epsilon"), [(1.0, 1e-7), (3e-4, 1e-7), (1.0, 0.5)])
def test_fifty_steps_are_those_of_keras(scale, epsilon, momentum):
    """Also where epsilon is as large as the mean squares: it stands under the root."""
    steps = gradients(STEPS, scale)
    options = {"learning_rate": 0.01, "epsilon": epsilon, "momentum": momentum}
    expected = updated(tf.keras.optimizers.RMSprop(**options), steps)
    found = updated(FusedRMSprop(**options), steps)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * np.abs(other).max())


def test_each_variable_is_updated_by_one_operation():
    weights, optimizer = variables(), FusedRMSprop()
    optimizer.build(weights)

    @tf.function
    def apply(given):
        optimizer.apply_gradients(zip(given, weights, strict=True))

    dense = gradients(2, 1.0)[1]
    kinds = [op.type for op in apply.get_concrete_function(dense).graph.get_operations()]
    assert kinds.count("ResourceApplyRMSProp") == len(weights)
    assert not {"Rsqrt", "Sqrt", "Square"} & set(kinds)


def test_all_that_it_keeps_is_in_its_variables():
    """Two halves, the second by another optimizer that was given the variables of the first."""
    steps, options = gradients(STEPS, 1.0), {"learning_rate": 0.01, "momentum": 0.9}
    weights, whole = variables(), FusedRMSprop(**options)
    whole.build(weights)
    states = []
    for given in steps:
        states.append([v.numpy() for v in (*weights, *whole.variables)])
        whole.apply_gradients(zip(given, weights, strict=True))
    others, other = variables(), FusedRMSprop(**options)
    other.build(others)
    for variable, value in zip((*others, *other.variables), states[STEPS // 2], strict=True):
        variable.assign(value)
    for given in steps[STEPS // 2 :]:
        other.apply_gradients(zip(given, others, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(others, weights, strict=True))


def test_it_is_read_from_its_configuration():
    optimizer = FusedRMSprop(0.5, rho=0.8, epsilon=0.25)
    copy = tf.keras.optimizers.deserialize(tf.keras.optimizers.serialize(optimizer))
    assert isinstance(copy, FusedRMSprop)
    assert copy.get_config() == optimizer.get_config()


def test_centered_gradients_are_refused():
    with pytest.raises(ValueError, match="no centered gradients; use Keras's RMSprop"):
        FusedRMSprop(centered=True)


def test_the_workload_chooses_by_its_knob():
    assert type(virus_cnn.optimizer(0.1)) is tf.keras.optimizers.RMSprop
    fused = virus_cnn.optimizer(0.1, "fused")
    assert isinstance(fused, FusedRMSprop)
    assert float(fused.learning_rate) == pytest.approx(0.1)
