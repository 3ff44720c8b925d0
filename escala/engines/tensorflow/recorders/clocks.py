"""Record the moments of every step of a rank; `escala.probes.clocks` says which."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from escala.engines.tensorflow.factors import Factors
from escala.engines.tensorflow.ranks import tensor_names
from escala.probes.clocks import COLUMNS, OUTSIDE, STEP_BEGINS, TENSOR_MOMENTS, Clocks


def recorder(
    probe: Clocks,
    plan: Mapping,
    process: int,
    variables: Sequence[tf.Variable],
    inside: bool,
    independent: bool,
) -> Moments:
    """Return the recorder of a process, see `escala.engines.tensorflow.recorders`."""
    return Moments(probe.folder / f"rank{process}.clocks.csv", variables, inside)


class Moments:
    """Records when the parts of each step of one process begin and end.

    The CSV file `path` gets the columns `COLUMNS`. `variables` are the trained ones, and `inside`
    is whether moments inside the step can be read.
    """

    def __init__(self, path: Path, variables: Sequence[tf.Variable], inside: bool):
        self._path, self._inside = path, inside
        names = tensor_names(variables)
        self._moments = [(STEP_BEGINS, ""), *((m, name) for m in TENSOR_MOMENTS for name in names)]
        self._rows: list[tuple] = []
        self._to_epoch = self._now_to_epoch = _to_epoch()
        if inside:
            self._stamps = tf.Variable(tf.zeros(len(self._moments), tf.float64), trainable=False)

    def step(self, compute: Callable, local: Callable, exchange: Callable, apply: Callable):
        """Return a rank's step that also records its moments; see `Recorder.step`."""

        def noted(*arguments):
            begun = _now()
            with tf.control_dependencies([begun]):
                gradients, *sums = compute(*arguments)
                gradients = local(gradients)
            gradients, ready = _each_stamped(gradients)
            gradients, exchanged = _each_stamped(exchange(gradients), after=ready)
            _, updated = _each_stamped([variable.read_value() for variable in apply(gradients)])
            self._stamps.assign(tf.stack([begun, *ready, *exchanged, *updated]))
            return tuple(sums)

        return noted

    def note(self, epoch: int, step: int, began: float, gathered: float, returned: float) -> None:
        """Record the moments of a finished step; the arguments are in `time.perf_counter`."""
        outside = [moment + self._to_epoch for moment in (began, gathered, returned)]
        moments = [*zip(OUTSIDE, [""] * len(OUTSIDE), outside, strict=True)]
        if self._inside:
            stamps = self._steady(self._stamps.numpy(), gathered, returned).tolist()
            moments += [(*name, at) for name, at in zip(self._moments, stamps, strict=True)]
        self._rows += [(epoch, step, *moment) for moment in moments]

    def _steady(self, stamps: np.ndarray, gathered: float, returned: float) -> np.ndarray:
        """Return times of day of a step, without the corrections of the clock since the first step.

        If the clock was corrected within the step, times that do not lie between its begin and its
        end were taken before the correction.
        """
        before, self._now_to_epoch = self._now_to_epoch, _to_epoch()
        now, then = stamps - self._now_to_epoch, stamps - before
        return np.where((gathered <= now) & (now <= returned), now, then) + self._to_epoch

    def write(self) -> None:
        with open(self._path, "w", newline="") as handle:
            csv.writer(handle).writerows([COLUMNS, *self._rows])


def _to_epoch() -> float:
    """Return the difference of the time of day and `time.perf_counter`, in seconds."""
    return time.time() - time.perf_counter()


def _each_stamped(values: Sequence, after: Sequence[tf.Tensor] = ()) -> tuple[list, list]:
    """Return copies of values, and the time at which each of them and all of `after` were computed.

    A copy is available when its own time was read, and waits for no other. The updates wait for
    `after`: otherwise TensorFlow may begin them during the backward pass, and their times could not
    be separated.
    """
    passed, stamps = [], []
    for value in values:
        with tf.control_dependencies([*tf.nest.flatten(value, expand_composites=True), *after]):
            stamp = _now()
        with tf.control_dependencies([stamp]):
            passed.append(_passed(value))
        stamps.append(stamp)
    return passed, stamps


def _passed(value):
    """Return a copy of a value, made when its control dependencies are met."""
    if isinstance(value, Factors):
        # The first factor is sent before the gradient is ready.
        return value._replace(output_gradients=tf.identity(value.output_gradients))
    return tf.nest.map_structure(tf.identity, value, expand_composites=True)


def _now() -> tf.Tensor:
    """Return the present time, without the order that TensorFlow gives to `tf.timestamp`s."""
    stamp = tf.timestamp()
    stamp.graph.experimental_acd_manager.run_independently(stamp.op)
    return stamp
