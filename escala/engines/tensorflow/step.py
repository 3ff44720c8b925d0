"""One step of a rank: compute the gradients of its rows, exchange and apply the gradients.

Trainable variables and the optimizer's variables are *replicated*: equal on all ranks after any
step. Under `parameter-server` there is only one copy. Other variables, such as the moving
statistics of batch normalisation, are *local* to a rank during an epoch, because each rank updates
them by its own rows. `average` makes local variables equal at the end of every epoch. Layers that
normalise over the rows of all ranks have equal statistics on all ranks after any step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from escala.data.base import Arrays
from escala.engines.functions import Functions
from escala.engines.layers import over_ranks
from escala.engines.tensorflow.fast import dense
from escala.engines.tensorflow.layers import layers_over_ranks
from escala.engines.tensorflow.ranks import Ranks
from escala.probes import Recorder
from escala.workloads.models import as_model_input


def local_variables(model: tf.keras.Model) -> list[tf.Variable]:
    """Return the variables that each rank updates by its own rows: untrainable floats.

    Weights of a frozen layer are not in the result, because they stay trainable variables. Nor are
    statistics of layers that normalise over all ranks.
    """
    shared = {id(v) for layer in layers_over_ranks(model) for v in layer.non_trainable_variables}
    variables = model.non_trainable_variables
    return [v for v in variables if not v.trainable and v.dtype.is_floating and id(v) not in shared]


def average(variables: Sequence[tf.Variable], rows: Sequence[int], ranks: Ranks) -> None:
    """Set variables of all ranks to their mean, weighted by the rows of each rank.

    A rank without rows has not updated its variables, and has weight 0. Every process calls this.
    `rows` are the numbers of rows in the epoch of each rank that the process drives.
    """
    if not variables:
        return
    copies = ranks.weights(variables)
    # Ranks with one common copy of the variables have updated this copy together.
    weights = rows if len(copies) == len(rows) else [sum(rows)]
    for variable, mean in zip(variables, ranks.mean(copies, weights), strict=True):
        variable.assign(mean.astype(variable.dtype.as_numpy_dtype))


def make_compute(
    model: tf.keras.Model,
    functions: Functions,
    kinds: Mapping[dense.Layer, type[dense.Factors]],
    local: Sequence[tf.Variable],
    total: Callable,
) -> Callable:
    """Return a function from a rank's arrays to gradients, sum of losses and number of hits.

    A rank's arrays are the inputs and targets of some rows, the weight of each row, and the divisor
    of the sum of the losses. A rank without rows does not change the variables `local`. `total` is
    `Ranks.sum_over_ranks`, for layers that normalise over all ranks.

    The gradients of the layers of `kinds` are factors (`dense.DenseLayers`). Losses of regularisers
    and layers (`model.losses`) are added to the loss of every row. So the mean over the rows of a
    step contains these losses once, for any number of ranks, fractions and parts. As in Keras, a
    regulariser of a layer's output is a mean over the rows that the layer receives at once.
    """

    def compute(*arguments):
        *inputs, targets, weights, divisor = arguments
        before = [variable.read_value() for variable in local]
        with tf.GradientTape() as tape, over_ranks(weights, total):
            outputs, recorded = dense.forward(model, as_model_input(inputs), kinds)
            losses = functions.row_losses(targets, outputs)
            if added := model.losses:
                losses += tf.add_n(added)
            loss_sum = tf.reduce_sum(weights * losses)
            target = loss_sum / divisor
        for variable, value in zip(local, before, strict=True):
            variable.assign(tf.where(tf.reduce_sum(weights) > 0, variable.read_value(), value))
        hits = weights * functions.correct(targets, outputs)
        gradients = dense.gradients(tape, target, model.trainable_variables, recorded)
        return gradients, loss_sum, tf.reduce_sum(hits)

    return compute


def accumulate(compute: Callable, parts: int) -> Callable:
    """Return a function that computes a rank's rows in several parts, and sums the results.

    With fewer rows than parts, every row is one part.
    """
    if parts == 1:
        return compute

    def add_up(*arguments):
        *arrays, divisor = arguments
        rows = tf.shape(arrays[0])[0]
        size = -(-rows // parts)

        def part(start):
            slices = [array[start : start + size] for array in arrays]
            gradients, *sums = compute(*slices, divisor)
            return list(map(dense.dense, gradients)), *sums

        def add(start, *sums):
            # Parts computed at the same time would need the memory of all parts.
            with tf.control_dependencies(tf.nest.flatten(sums)):
                start_after_sums = tf.identity(start)
            totals = tf.nest.map_structure(tf.add, sums, part(start_after_sums))
            return start + size, *totals

        _, *sums = tf.while_loop(lambda start, *_: start < rows, add, (size, *part(0)))
        return tuple(sums)

    return add_up


def slow_down(compute: Callable, factor: float) -> Callable:
    """Return `compute` with a sleep, so that it takes `factor` times as long.

    The core is free during the sleep. Later operations are not slowed.
    """
    if factor == 1:
        return compute

    def now() -> np.float64:
        # Outside a graph TensorFlow converts a plain float to float32.
        return np.float64(time.perf_counter())

    def sleep(started: float) -> float:
        seconds = (factor - 1) * (now() - started)
        time.sleep(seconds)
        return seconds

    def slow(*arguments):
        started = tf.numpy_function(now, [], tf.float64)
        with tf.control_dependencies([started]):
            arguments = [tf.identity(argument) for argument in arguments]
        results = compute(*arguments)
        with tf.control_dependencies(tf.nest.flatten(results, expand_composites=True)):
            slept = tf.numpy_function(sleep, [started], tf.float64)
        with tf.control_dependencies([slept]):
            return tf.nest.map_structure(tf.identity, results, expand_composites=True)

    return slow


def train_step(
    layers: dense.DenseLayers,
    ranks: Ranks,
    data: Arrays,
    compute: Callable,
    exchange: Callable,
    recorder: Recorder | None = None,
    count: int = 1,
) -> Callable:
    """Return the compiled step, from the arrays of each rank to sums of losses and of hits.

    A call makes `count` steps, and returns the sums of each step (`repeat`).
    """

    def exchange_all(gradients):
        return layers.exchange_in_memory(exchange(gradients, layers.updated), gradients)

    def step(*arguments):
        gradients, *sums = compute(*arguments)
        layers.update(exchange_all(gradients))
        return tuple(sums)

    if recorder and ranks.reads_clock:
        step = recorder.step(compute, ranks.local, exchange_all, layers.update)
    return ranks.compile(repeat(step, count), step_signature(data))


def repeat(step: Callable, count: int) -> Callable:
    """Return a function that makes `count` steps, one after the other, in one graph.

    A step takes its arrays, and returns two float32 scalars. The new function takes the rows of all
    steps, one step below the other, with an equal number of rows in each step. It returns the first
    scalar of every step, then the second scalar of every step.
    """
    if count == 1:
        return step

    def make(*arguments):
        *arrays, divisor = arguments
        rows = tf.shape(arrays[0])[0] // count

        def one(number, *results):
            slices = [array[number * rows : (number + 1) * rows] for array in arrays]
            values = step(*slices, divisor)
            # Steps must not run at the same time, because the second step needs the updated
            # weights.
            with tf.control_dependencies(values):
                written = [r.write(number, v) for r, v in zip(results, values, strict=True)]
                return number + 1, *written

        results = [tf.TensorArray(tf.float32, count, element_shape=()) for _ in range(2)]
        _, *results = tf.while_loop(
            lambda number, *_: number < count, one, (0, *results), parallel_iterations=1
        )
        return [value for array in results for value in tf.unstack(array.stack(), count)]

    return make


def step_signature(data: Arrays, rows: int | None = None) -> list[tf.TensorSpec]:
    """Return the specs of a step's arrays for a number of rows; None means any number."""
    weights, divisor = tf.TensorSpec((rows,), tf.float32), tf.TensorSpec((), tf.float32)
    arrays = [tf.TensorSpec((rows, *e.shape), e.dtype) for e in (*data.inputs, data.targets)]
    return [*arrays, weights, divisor]
