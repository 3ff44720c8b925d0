"""Record the moments of every step of a rank; `escala.probes.clocks` lists the moments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from escala.engines.tensorflow.fast.dense import Factors
from escala.engines.tensorflow.ranks import tensor_names
from escala.probes import clocks
from escala.probes.clocks import COMPUTED, ENTERED, STEP_BEGINS, SUMMED, TENSOR_MOMENTS, Sample


class Recorder(clocks.MomentsWriter):
    """Records when the parts of each step of one process begin and end.

    `variables` are the trained variables. `reads_clock` says whether moments inside the step can be
    read. If so, `step` makes the step to compile.
    """

    def __init__(self, path: Path, variables: Sequence[tf.Variable], reads_clock: bool):
        super().__init__(path)
        self._reads_clock = reads_clock
        names = tensor_names(variables)
        self._moments = [(STEP_BEGINS, ""), *((m, name) for m in TENSOR_MOMENTS for name in names)]
        self._latest_offset = self._offset
        self._sampled: dict[str, Sample] = {}
        if reads_clock:
            self._stamps = tf.Variable(tf.zeros(len(self._moments), tf.float64), trainable=False)

    def step(self, compute: Callable, local: Callable, exchange: Callable, apply: Callable):
        """Return a rank's step that also records its moments.

        Parameters
        ----------
        compute : maps the arrays of a step to gradients, sum of losses and number of hits.
        local : converts gradients for the exchange.
        exchange : maps gradients to their sums over all ranks.
        apply : updates the variables by the sums; returns the variables, in the order of gradients.
        """

        def note(*arguments):
            begun = _now()
            with tf.control_dependencies([begun, self._sample(ENTERED, after=[begun])]):
                gradients, *sums = compute(*arguments)
                gradients = local(gradients)
            gradients, ready = _stamp(gradients)
            computed = self._sample(COMPUTED, after=ready)
            gradients, exchanged = _stamp(exchange(gradients), after=[*ready, computed])
            with tf.control_dependencies([self._sample(SUMMED, after=exchanged)]):
                gradients = list(map(_copy, gradients))
            _, updated = _stamp([variable.read_value() for variable in apply(gradients)])
            self._stamps.assign(tf.stack([begun, *ready, *exchanged, *updated]))
            return tuple(sums)

        return note

    def _sample(self, moment: str, after: Sequence[tf.Tensor]) -> tf.Tensor:
        """Sample the process once all of `after` are computed."""

        def sample():
            self._sampled[moment] = self._on_core.sample()
            return np.float64(0)

        with tf.control_dependencies(after):
            sampled = tf.numpy_function(sample, [], tf.float64)
        sampled.graph.experimental_acd_manager.run_independently(sampled.op)
        return sampled

    def samples(self, gathered: float, returned: float) -> dict[str, Sample]:
        return self._sampled

    def inside(self, gathered: float, returned: float) -> Iterator[tuple[str, str, float]]:
        if self._reads_clock:
            # TensorFlow reads the time of day, which may be corrected within a step. If the present
            # difference of the clocks puts a time outside the step, the time was read before the
            # correction.
            earlier, self._latest_offset = self._latest_offset, clocks.clock_offset()
            stamps = self._stamps.numpy()
            times = stamps - self._latest_offset
            is_within = (gathered <= times) & (times <= returned)
            times = np.where(is_within, times, stamps - earlier).tolist()
            for (moment, tensor), at in zip(self._moments, times, strict=True):
                yield moment, tensor, at


def _stamp(values: Sequence, after: Sequence[tf.Tensor] = ()) -> tuple[list, list]:
    """Return copies of values, and for each the time when it and all of `after` were computed.

    A copy waits for its own time and for no other time. Updates wait for `after`. Otherwise
    TensorFlow may begin updates during the backward pass, and the times of both could not be
    separated.
    """
    passed, stamps = [], []
    for value in values:
        with tf.control_dependencies([*tf.nest.flatten(value, expand_composites=True), *after]):
            stamp = _now()
        with tf.control_dependencies([stamp]):
            passed.append(_copy(value))
        stamps.append(stamp)
    return passed, stamps


def _copy(value):
    """Return a copy of a value that is made after its control dependencies."""
    if isinstance(value, Factors):
        # The first factor is sent before the gradient is ready, so it is not copied.
        return value._replace(output_gradients=tf.identity(value.output_gradients))
    return tf.nest.map_structure(tf.identity, value, expand_composites=True)


def _now() -> tf.Tensor:
    """Return the present time; TensorFlow would order several `tf.timestamp` operations."""
    stamp = tf.timestamp()
    stamp.graph.experimental_acd_manager.run_independently(stamp.op)
    return stamp
