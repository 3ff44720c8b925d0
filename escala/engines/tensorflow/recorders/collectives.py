"""Calls of collectives inside a rank, and its steps of each kind (`escala.probes.collectives`).

The time of a call is read within TensorFlow, where a training step calls it, so it leaves out what
Python takes to call TensorFlow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import tensorflow as tf

from escala.engines.tensorflow.fast.dense import Factors
from escala.probes import _timed
from escala.probes.collectives import ALLREDUCE, OPERATIONS, Collectives
from escala.strategies import STRATEGIES


def recorder(
    probe: Collectives,
    plan: Mapping,
    process: int,
    variables: Sequence[tf.Variable],
    inside: bool,
    independent: bool,
) -> Timed:
    """Return the recorder of a process, see `escala.engines.tensorflow.recorders`."""
    name = STRATEGIES[plan["strategy"]].library
    return Timed(probe, plan, process, timed_library(name), inside and independent, variables)


class Timed(_timed.Timed):
    """Times the collectives of one process, and its steps; `variables` are the trained ones."""

    def __init__(self, probe, plan, process, library, alone, variables: Sequence[tf.Variable]):
        super().__init__(probe, plan, process, library, alone)
        self._variables = variables

    def step(self, compute: Callable, local: Callable, exchange: Callable, apply: Callable):
        """Return a step that applies a rank's own gradients, or exchanges them before.

        See `Recorder.step`.
        """
        self._exchanging = tf.Variable(False, trainable=False)

        def by_itself(*arguments):
            gradients, *sums = compute(*arguments)
            if any(isinstance(gradient, Factors) for gradient in gradients):
                # Each rank updates a part of the weights, so the ranks need each other.
                self.alone = False
            if not self.alone:
                apply(exchange(gradients))
            else:
                # Each branch applies its gradients, because an exchange may make sparse ones dense,
                # and returns a tensor, as it must.
                tf.cond(
                    self._exchanging,
                    lambda: tf.constant(len(apply(exchange(gradients)))),
                    lambda: tf.constant(len(apply(gradients))),
                )
            return tuple(sums)

        return by_itself

    def exchange(self, exchanging):
        self._exchanging.assign(exchanging)

    def broadcast(self):
        import horovod.tensorflow as hvd

        hvd.broadcast_variables(self._variables, root_rank=0)


#: Returns the result of an operation, by its name, the name of the tensor, and the tensor, within a
#: `tf.function`; every rank must call it.
Collective = Callable[[str, str, tf.Tensor], tf.Tensor]


def timed_library(name: str) -> _timed.Library:
    """Return the collectives of a library in calls of TensorFlow."""
    collective = _by_tensorflow if name == "tensorflow" else _by_horovod

    def call(operation: str, size: int) -> Call:
        values = tf.zeros(size // 4, tf.float32)
        return Call(partial(collective, operation, f"collectives/{operation}/{size}"), values)

    def product(*factors: tf.Tensor) -> Callable:
        inputs, outputs = map(tf.constant, factors)
        return lambda: tf.matmul(inputs, outputs, transpose_a=True)

    empty = Call(lambda values: values, tf.zeros(1))
    return _timed.Library(name, OPERATIONS, call, empty, _agreement(collective), product)


def _by_horovod(operation: str, name: str, values: tf.Tensor) -> tf.Tensor:
    """Exchange through MPI or Gloo."""
    import horovod.tensorflow as hvd

    if operation == ALLREDUCE:
        return hvd.allreduce(values, op=hvd.Sum, name=name)
    return hvd.allgather(values, name=name)


def _by_tensorflow(operation: str, name: str, values: tf.Tensor) -> tf.Tensor:
    """Exchange by `tf.distribute`, under the strategy whose scope is entered."""

    def in_replica(values):
        # A tensor without a device is no destination; the identity has that of the replica.
        values, context = tf.identity(values), tf.distribute.get_replica_context()
        if operation == ALLREDUCE:
            return context.all_reduce(tf.distribute.ReduceOp.SUM, values)
        return context.all_gather(values, axis=0)

    return tf.distribute.get_strategy().run(in_replica, args=(values,))


class Call:
    """A collective that is called with the same values each time; every rank must call it."""

    def __init__(self, collective: Callable[[tf.Tensor], tf.Tensor], values: tf.Tensor):
        def between(values):
            began = tf.timestamp()
            with tf.control_dependencies([began]):
                result = collective(tf.identity(values))
            with tf.control_dependencies([result]):
                # Without a use of the result, TensorFlow may leave out the collective.
                return tf.timestamp() - began, result[0]

        self._call, self._values = tf.function(between, autograph=False), values

    def seconds(self) -> float:
        """Return the time of a call from within TensorFlow.

        If the clock is corrected meanwhile, the time measured from outside is returned instead.
        """
        before = time.perf_counter()
        within = float(self._call(self._values)[0])
        outside = time.perf_counter() - before
        return within if 0 < within <= outside else outside


def _agreement(collective: Collective) -> Callable[[float], float]:
    """Return a function to the mean of a number over the ranks, so that all decide the same."""

    @tf.function(autograph=False)
    def total(values):
        return collective(ALLREDUCE, "collectives/agreement", values)

    def agree(value: float) -> float:
        both = total(tf.constant([value, 1.0], tf.float64)).numpy()
        return float(both[0] / both[1])

    return agree
