"""The time of a collective is read within TensorFlow, and what Python takes is no part of it."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import tensorflow as tf

from escala.engines.tensorflow.recorders.collectives import Call, Timed
from escala.probes import _cores as cores
from escala.probes import _timed
from escala.probes._turns import Blocks
from escala.probes.collectives import OPERATIONS

SLEEP = 0.02


@pytest.fixture
def sleeping():
    """A call that sleeps, and how often it did; TensorFlow may move or leave out what it calls."""
    calls = []

    def sleep(values):
        calls.append(1)
        time.sleep(SLEEP)
        return values

    def collective(values):
        return tf.numpy_function(sleep, [values], tf.float32, stateful=False)

    return Call(collective, tf.zeros(4)), calls


def test_every_call_is_made_and_its_time_is_inside_that_of_python(sleeping):
    call, calls = sleeping
    for number in range(1, 4):
        before = time.perf_counter()
        found = call.seconds()
        assert SLEEP <= found <= time.perf_counter() - before
        assert len(calls) == number


def test_what_python_takes_is_no_part_of_a_time(sleeping):
    call, _ = sleeping
    call.seconds()  # Compiles.
    called = call._call

    def slowly(values):
        time.sleep(SLEEP)
        return called(values)

    call._call = slowly
    before = time.perf_counter()
    found = call.seconds()
    outside = time.perf_counter() - before
    assert SLEEP <= found <= outside - SLEEP


def test_a_call_that_takes_long_once_leaves_no_larger_size_out(monkeypatch):
    """The first call of each size takes a second, and the next one 10 ms."""
    calls = itertools.count()

    def seconds(call):
        return 0.01 if next(calls) % 2 else 1.0

    class Empty:
        def seconds(self):
            return 0.01

    library = _timed.Library(
        "mpi", OPERATIONS, lambda *_: Empty(), Empty(), lambda each: each, None
    )
    monkeypatch.setattr(cores, "seconds_of", seconds)
    sizes = [1024, 2048, 4096]
    timed = _timed.Timings(library, sizes, 2, 6.0)
    assert [each["bytes"] for each in timed._entries] == sizes * 2
    monkeypatch.setattr(cores, "seconds_of", lambda call: 1.0)
    timed = _timed.Timings(library, sizes, 2, 6.0)
    assert [each["bytes"] for each in timed._entries] == [1024, 1024]


@pytest.mark.parametrize("corrected", [-3600.0, 3600.0])
def test_a_corrected_clock_does_not_change_a_time(monkeypatch, sleeping, corrected):
    stamps = itertools.cycle([0.0, corrected])
    monkeypatch.setattr(tf, "timestamp", lambda: tf.constant(next(stamps), tf.float64))
    before = time.perf_counter()
    found = sleeping[0].seconds()
    assert SLEEP <= found <= time.perf_counter() - before


class Known:
    """A call that takes known seconds of a clock, and computing so much of the core."""

    def __init__(self, clock, computing, within, outside, speed):
        self._clock, self._computing = clock, computing
        self._within, self._outside, self._speed = within, outside, speed

    def seconds(self):
        self._clock[0] += self._within + self._outside
        self._computing._done += self._speed * self._within * USUAL
        return self._within


USUAL = 40.0


@pytest.mark.parametrize("speed", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("outside", [0.0, 0.5])
def test_what_computing_loses_by_a_call_is_known(monkeypatch, speed, outside):
    clock = [100.0]
    monkeypatch.setattr(cores.time, "perf_counter", lambda: clock[0])
    computing = cores.Computing()
    computing._done = 7.0
    times, lost = computing.alongside(Known(clock, computing, 2.0, outside, speed), 3, USUAL)
    assert times == [2.0] * 3
    np.testing.assert_allclose(lost, (1 - speed) * 2 + outside)


def test_a_rate_is_that_of_calls_after_the_first_ones(monkeypatch):
    clock, calls = [0.0], []
    monkeypatch.setattr(cores.time, "perf_counter", lambda: clock[0])

    def work():
        calls.append(1)
        clock[0] += 0.05 if len(calls) <= 5 else 0.01

    np.testing.assert_allclose(cores._rates(work, 20.0, 3), [2000.0] * 3)


class Counted:
    """Stands for what times collectives after steps, and for turns."""

    def __init__(self):
        self.calls = 0

    def after_step(self) -> None:
        self.calls += 1

    def note(self, *step) -> None: ...

    def wait(self, *step) -> None: ...


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("independent", [False, True])
def test_steps_exchange_in_the_blocks_that_say_so_and_only_there(sparse, independent):
    """An exchange of two ranks with equal gradients doubles them, and makes sparse ones dense."""
    variable = tf.Variable(tf.zeros((3, 1)))
    timed, counted = Timed.__new__(Timed), Counted()
    timed.alone = independent
    timed._blocks, timed._timed, timed._turns = Blocks(2, 3), counted, counted

    def compute():
        ones = tf.ones((3, 1))
        return [tf.IndexedSlices(ones, [0, 1, 2], (3, 1)) if sparse else ones], tf.constant(0.0)

    def exchange(gradients):
        return [2 * tf.convert_to_tensor(gradient) for gradient in gradients]

    def apply(gradients):
        [gradient] = gradients
        variable.assign_add(tf.convert_to_tensor(gradient))
        return [variable]

    step, steps = tf.function(timed.step(compute, None, exchange, apply)), []
    for epoch in (1, 2):
        for number in range(1, 9):
            before = variable.numpy()
            step()
            timed.note(epoch, number, 0.0, 0.0, 0.0)
            [made] = np.unique(variable.numpy() - before)
            steps.append(made)
    if not independent:
        assert steps == [2] * 16 and counted.calls == 0
        return
    # The first step of an epoch and those after its blocks are made at the same time.
    assert steps == 2 * [1, 2, 2, 1, 1, 1, 1, 1]
    assert counted.calls == 2 * (1 + 2 + 1)
