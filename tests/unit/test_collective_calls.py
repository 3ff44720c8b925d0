"""The time of a collective is read within TensorFlow, and what Python takes is no part of it."""

from __future__ import annotations

import itertools
import time

import pytest
import tensorflow as tf

from escala.engines.tensorflow.ranks import Ranks

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

        def summed(self, values, name):
            return tf.numpy_function(sleep, [values], tf.float32, stateful=False)

    return Sleeping({}, None).collective("allreduce", 16), calls


def test_every_call_is_made_and_its_time_is_inside_that_of_python(sleeping):
    call, calls = sleeping
    for number in range(1, 4):
        before = time.perf_counter()
        found = call()
        assert SLEEP <= found <= time.perf_counter() - before
        assert len(calls) == number


@pytest.fixture
def slow_python(monkeypatch):
    """Python takes its time to call what TensorFlow compiled."""
    compiled = tf.function

    def slowly(**options):
        def decorate(function):
            call = compiled(**options)(function)
            return lambda values: (time.sleep(SLEEP), call(values))[1]

        return decorate

    monkeypatch.setattr(tf, "function", slowly)


def test_what_python_takes_is_no_part_of_a_time(slow_python, sleeping):
    call, _ = sleeping
    call()  # Compiles.
    before = time.perf_counter()
    found = call()
    outside = time.perf_counter() - before
    assert SLEEP <= found <= outside - SLEEP


@pytest.mark.parametrize("corrected", [-3600.0, 3600.0])
def test_a_corrected_clock_does_not_change_a_time(monkeypatch, sleeping, corrected):
    stamps = itertools.cycle([0.0, corrected])
    monkeypatch.setattr(tf, "timestamp", lambda: tf.constant(next(stamps), tf.float64))
    before = time.perf_counter()
    found = sleeping[0]()
    assert SLEEP <= found <= time.perf_counter() - before
