"""One step of a rank: its rows to gradients, exchanged and applied."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from escala.data.base import Arrays
from escala.probes import Recorder
from escala.strategies import Strategy
from escala.strategies.shared import factors
from escala.workloads.models import given


def factored(model, request: dict, strategy: Strategy, ranks: int) -> list[tf.keras.layers.Layer]:
    """Return the layers whose gradients stay factors until they are exchanged."""
    if not (request["knobs"]["factors"] and strategy.gathers):
        return []
    rows = min(request["global_batch"], request["train_rows"])
    return factors.worthwhile(model, rows, ranks)


def computing(
    model: tf.keras.Model,
    row_losses: Callable,
    correct: Callable,
    apart: Sequence[tf.keras.layers.Layer],
    own: Sequence[tf.Variable],
) -> Callable:
    """Return what takes a rank's arrays of a step to gradients and sums of losses and scores.

    These arrays are the inputs and the targets of some rows, the weight of each, and what the sum
    of the losses is divided by. `correct` scores each row. `own` are the variables that the model
    itself updates; a rank without rows leaves them as they are.

    The gradients of layers `apart` are their factors. What regularisers and layers add to the loss
    (`model.losses`) counts as part of the loss of every row. So the mean over the rows of a step
    holds it once, however many ranks, shares and parts these rows are divided into. As in Keras, a
    regulariser of a layer's output is a mean over the rows that the layer is given at once.
    """

    def compute(*arguments):
        *inputs, targets, weights, divisor = arguments
        before = [variable.read_value() for variable in own]
        with tf.GradientTape() as tape:
            if apart:
                outputs, seen = factors.forward(model, given(inputs), apart)
            else:
                outputs, seen = model(given(inputs), training=True), {}
            losses = row_losses(targets, outputs)
            if of_model := model.losses:
                losses += tf.add_n(of_model)
            loss_sum = tf.reduce_sum(weights * losses)
            share = loss_sum / divisor
        for variable, value in zip(own, before, strict=True):
            variable.assign(tf.where(tf.reduce_sum(weights) > 0, variable.read_value(), value))
        right = correct(targets, outputs)
        gradients = factors.gradients(tape, share, model.trainable_variables, seen)
        return gradients, loss_sum, tf.reduce_sum(weights * right)

    return compute


def accumulated(compute: Callable, parts: int) -> Callable:
    """Compute a rank's rows in that many parts, one after the other, and sum what they give.

    Fewer rows than parts are as many parts as rows.
    """
    if parts == 1:
        return compute

    def add_up(*arguments):
        *arrays, divisor = arguments
        rows = tf.shape(arrays[0])[0]
        size = -(-rows // parts)

        def part(start):
            of_part = [array[start : start + size] for array in arrays]
            gradients, *sums = compute(*of_part, divisor)
            return list(map(factors.dense, gradients)), *sums

        def add(start, *sums):
            # Parts at the same time would take the memory of all of them.
            with tf.control_dependencies(tf.nest.flatten(sums)):
                next_one = tf.identity(start)
            added = tf.nest.map_structure(tf.add, sums, part(next_one))
            return start + size, *added

        _, *sums = tf.while_loop(lambda start, *_: start < rows, add, (size, *part(0)))
        return tuple(sums)

    return add_up


def slowed(compute: Callable, factor: float) -> Callable:
    """Make what computes tensors take `factor` times as long, as on a slower processor.

    It sleeps: the core is free meanwhile, and nothing that follows is slowed.
    """
    if factor == 1:
        return compute

    def now() -> np.float64:
        # Outside a graph TensorFlow makes a float32 of a plain float.
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
    model: tf.keras.Model,
    optimizer: tf.keras.optimizers.Optimizer,
    strategy: Strategy,
    data: Arrays,
    compute: Callable,
    exchange: Callable,
    recorder: Recorder | None = None,
) -> Callable:
    """Return the compiled step, from what `gather` returns of each rank to losses and scores."""
    weights, divisor = tf.TensorSpec((None,), tf.float32), tf.TensorSpec((), tf.float32)
    signature = (*row_signature(data), weights, divisor)

    def step(*arguments):
        gradients, loss_sum, right = compute(*arguments)
        apply(exchange(gradients, model.trainable_variables))
        return loss_sum, right

    def apply(gradients):
        gradients = [g.product() if isinstance(g, factors.Factors) else g for g in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return model.trainable_variables

    if recorder and strategy.shows_steps:
        step = recorder.step(
            compute,
            strategy.local,
            lambda gradients: exchange(gradients, model.trainable_variables),
            apply,
        )
    return strategy.compiled(step, signature)


def no_exchange(gradients: Sequence, variables: Sequence) -> list:
    """Return the gradients of a rank that trains by itself."""
    return list(gradients)


def row_signature(data: Arrays) -> list[tf.TensorSpec]:
    """Return the specs of the inputs and the targets of any number of rows."""
    specs = (*data.inputs, data.targets)
    return [tf.TensorSpec((None, *spec.shape), spec.dtype) for spec in specs]


def gather(data: Arrays, rows: np.ndarray, divisor: float) -> tuple:
    """Return inputs, targets and weights of a rank's rows, and what its loss is divided by.

    An empty share becomes one row of weight 0: the rank takes part in the exchange and adds
    nothing, and TensorFlow's convolutions are spared a batch without rows, which they reject.
    """
    inputs, targets = data.gather("train", rows if len(rows) else np.zeros(1, np.int64))
    weights = np.full(len(targets), float(len(rows) > 0), np.float32)
    return (*inputs, targets, weights, np.float32(divisor))


def most_probable_is_right(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Return 1 for each row whose most probable class is its target and 0 otherwise, float32."""
    return tf.cast(tf.equal(tf.argmax(outputs, axis=-1), tf.cast(targets, tf.int64)), tf.float32)


def divisors(of_rank: list[np.ndarray], weighting: str) -> list[float]:
    """Return what each rank divides the sum of its losses by, so that the sum over ranks is a mean.

    By `rows` every row counts the same. By `ranks` every rank does, however few its rows are: what
    averaging the ranks' own means comes to. The mean of a rank without rows is 0.
    """
    if weighting == "rows":
        return [sum(map(len, of_rank))] * len(of_rank)
    return [max(1, len(rows)) * len(of_rank) for rows in of_rank]
