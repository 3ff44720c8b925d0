"""One step of a rank: compute the gradients of its rows, exchange them and apply them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import tensorflow as tf

from escala.data.base import Arrays
from escala.probes import Recorder
from escala.strategies import Strategy, costs
from escala.strategies.base import tensor_names
from escala.strategies.shared import factors, recompute
from escala.strategies.shared.exchanges import of_one_rank, selected
from escala.strategies.shared.shared_memory import SharedKernel
from escala.training.state import State
from escala.workloads.dense_operations import dense
from escala.workloads.models import given
from escala.workloads.normalisation import over_ranks


def exchanges(
    model: tf.keras.Model,
    optimizer: tf.keras.optimizers.Optimizer,
    request: dict,
    strategy: Strategy,
    ranks: int,
    input_of: Callable | None = None,
) -> dict[tf.keras.layers.Dense, str]:
    """Return the exchange of each dense layer that need not be summed by allreduce.

    It is empty where the ranks sum all gradients. The gradients of a single rank stay factors where
    the optimizer takes them.

    Parameters
    ----------
    input_of : the function of this name of the workload, if it has one.
    """
    knobs = request["knobs"]
    if not strategy.gathers or knobs["accumulation"] > 1:
        return {}
    if ranks == 1:
        return of_one_rank(model, optimizer)
    wanted = knobs["dense_exchange"]
    if wanted == costs.ALLREDUCE:
        return {}
    rows = min(request["global_batch"], request["train_rows"])
    one_node = strategy.place.nodes == 1 and strategy.place.processes == ranks
    return selected(model, optimizer, wanted, rows, ranks, one_node, input_of)


def shared_kernels(
    exchanges: Mapping[tf.keras.layers.Dense, str], strategy: Strategy, rows: int
) -> list[SharedKernel]:
    """Place the kernels that are exchanged through memory there.

    Parameters
    ----------
    rows : the most that all ranks have in a step.
    """
    return [
        SharedKernel.among(layer.kernel, strategy, rows)
        for layer, exchange in exchanges.items()
        if exchange == costs.SHARED_MEMORY
    ]


def methods(
    model: tf.keras.Model,
    exchanges: Mapping[tf.keras.layers.Dense, str],
    strategy: Strategy,
    input_gradient: str,
    input_of: Callable | None = None,
) -> dict[tf.keras.layers.Dense, factors.Method]:
    """Return how each layer is computed whose gradient is not summed by allreduce.

    Parameters
    ----------
    input_gradient : the knob of this name.
    input_of : the function of this name of the workload, if it has one.
    """
    names = dict(zip(_refs(model), tensor_names(model.trainable_variables), strict=True))
    kinds = {
        costs.FACTORS: factors.Factors,
        costs.SHARED_MEMORY: factors.InMemory,
    }
    of_inputs = {"tensorflow": factors.input_gradient, "operation": dense.input_gradient}

    def method(layer: tf.keras.layers.Dense, exchange: str) -> factors.Method:
        # The operation computes with float32 only.
        of_float32 = layer.compute_dtype == "float32"
        gradient = of_inputs[input_gradient if of_float32 else "tensorflow"]
        if exchange == costs.RECOMPUTE:
            before = recompute.layers_before(model, layer, input_of)
            return partial(
                recompute.computed, names[layer.kernel.ref()], before, strategy, gradient
            )
        return partial(factors.as_factors, kinds[exchange], gradient)

    return {
        layer: method(layer, exchange)
        for layer, exchange in exchanges.items()
        if exchange != costs.ALLREDUCE
    }


def _refs(model: tf.keras.Model) -> list:
    return [variable.ref() for variable in model.trainable_variables]


def computing(
    model: tf.keras.Model,
    row_losses: Callable,
    correct: Callable,
    methods: Mapping[tf.keras.layers.Dense, factors.Method],
    own: Sequence[tf.Variable],
    summed: Callable,
) -> Callable:
    """Return a function from a rank's arrays of a step to gradients and sums of losses and scores.

    These arrays are the inputs and targets of some rows, the weight of each row, and the divisor of
    the sum of the losses. `correct` scores each row. `own` are the variables that the model itself
    updates; a rank without rows does not change them. `summed` sums over ranks for layers that
    normalise over all of them (`Strategy.summed`).

    The layers of `methods` are computed by these, and their gradients are factors. Losses of
    regularisers and layers (`model.losses`) are added to the loss of every row. So the mean over
    the rows of a step holds them once, for any number of ranks, shares and parts. As in Keras, a
    regulariser of a layer's output is a mean over the rows that the layer receives at once.
    """

    def compute(*arguments):
        *inputs, targets, weights, divisor = arguments
        before = [variable.read_value() for variable in own]
        with tf.GradientTape() as tape, over_ranks(weights, summed):
            outputs, recorded = factors.forward(model, given(inputs), methods)
            losses = row_losses(targets, outputs)
            if of_model := model.losses:
                losses += tf.add_n(of_model)
            loss_sum = tf.reduce_sum(weights * losses)
            share = loss_sum / divisor
        for variable, value in zip(own, before, strict=True):
            variable.assign(tf.where(tf.reduce_sum(weights) > 0, variable.read_value(), value))
        right = correct(targets, outputs)
        gradients = factors.gradients(tape, share, model.trainable_variables, recorded)
        return gradients, loss_sum, tf.reduce_sum(weights * right)

    return compute


def accumulated(compute: Callable, parts: int) -> Callable:
    """Return a function that computes a rank's rows in parts and sums the results.

    Fewer rows than parts give one part per row.
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
            # Parts computed at the same time would need the memory of all parts.
            with tf.control_dependencies(tf.nest.flatten(sums)):
                next_one = tf.identity(start)
            added = tf.nest.map_structure(tf.add, sums, part(next_one))
            return start + size, *added

        _, *sums = tf.while_loop(lambda start, *_: start < rows, add, (size, *part(0)))
        return tuple(sums)

    return add_up


def slowed(compute: Callable, factor: float) -> Callable:
    """Return a function that takes `factor` times as long, as on a slower processor.

    It sleeps, so the core is free meanwhile, and later operations are not slowed.
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


def with_shared(state: State, compute: Callable) -> Callable:
    """Return a function that also waits for the kernels that ranks share."""

    def wait_and_compute(*arguments):
        state.begin_step(tf.shape(arguments[0])[0])
        return compute(*arguments)

    return wait_and_compute


def train_step(
    state: State,
    strategy: Strategy,
    data: Arrays,
    compute: Callable,
    exchange: Callable,
    recorder: Recorder | None = None,
    count: int = 1,
) -> Callable:
    """Return the compiled step, a function from each rank's `gather` to losses and scores.

    With a `count` it makes several steps; see `repeated`.
    """

    if state.sums and exchange is not no_exchange:
        exchange = partial(exchange, sums=state.sums)

    def exchanged(gradients):
        return state.exchanged(exchange(gradients, state.updated), gradients)

    def step(*arguments):
        gradients, loss_sum, right = compute(*arguments)
        state.update(exchanged(gradients))
        return loss_sum, right

    if recorder and strategy.can_time_inside_step:
        step = recorder.step(compute, strategy.local, exchanged, state.update)
    return strategy.compiled(repeated(step, count), step_signature(data))


def repeated(step: Callable, count: int) -> Callable:
    """Return a function that makes `count` steps, one after the other, in one graph.

    Parameters
    ----------
    step : takes tensors as `gather` returns them, and returns two float32 scalars.

    Returns
    -------
    A function that takes the rows of all steps, one below the other, as many in each step. It
    returns the first scalar of every step, and then the second of every step.
    """
    if count == 1:
        return step

    def make(*arguments):
        *arrays, divisor = arguments
        rows = tf.shape(arrays[0])[0] // count

        def one(number, *results):
            of_step = [array[number * rows : (number + 1) * rows] for array in arrays]
            values = step(*of_step, divisor)
            # Two steps at the same time would train by the same weights.
            with tf.control_dependencies(values):
                written = [r.write(number, v) for r, v in zip(results, values, strict=True)]
                return number + 1, *written

        results = [tf.TensorArray(tf.float32, count, element_shape=()) for _ in range(2)]
        _, *results = tf.while_loop(
            lambda number, *_: number < count, one, (0, *results), parallel_iterations=1
        )
        return [value for each in results for value in tf.unstack(each.stack(), count)]

    return make


def own_sum(values: tf.Tensor, name: str) -> tf.Tensor:
    """Return the sum over the ranks of a rank that trains by itself."""
    return values


def no_exchange(gradients: Sequence, variables: Sequence) -> list:
    """Return the gradients of a rank that trains by itself."""
    return list(gradients)


def step_signature(data: Arrays, rows: int | None = None) -> list[tf.TensorSpec]:
    """Return the specs of what `gather` returns for so many rows, None for any number."""
    weights, divisor = tf.TensorSpec((rows,), tf.float32), tf.TensorSpec((), tf.float32)
    return [*row_signature(data, rows), weights, divisor]


def row_signature(data: Arrays, rows: int | None = None) -> list[tf.TensorSpec]:
    """Return the specs of the inputs and the targets of so many rows, None for any number."""
    specs = (*data.inputs, data.targets)
    return [tf.TensorSpec((rows, *spec.shape), spec.dtype) for spec in specs]


def gather(data: Arrays, rows: np.ndarray, divisor: float) -> tuple:
    """Return inputs, targets and weights of a rank's rows, and the divisor of its loss.

    An empty share becomes one row of weight 0: the rank takes part in the exchange but adds
    nothing. TensorFlow's convolutions reject a batch without rows.
    """
    inputs, targets = data.gather("train", rows if len(rows) else np.zeros(1, np.int64))
    weights = np.full(len(targets), float(len(rows) > 0), np.float32)
    return (*inputs, targets, weights, np.float32(divisor))


def most_probable_is_right(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Return 1 for each row whose most probable class is its target and 0 otherwise, float32."""
    return tf.cast(tf.equal(tf.argmax(outputs, axis=-1), tf.cast(targets, tf.int64)), tf.float32)


def divisors(of_rank: list[np.ndarray], weighting: str) -> list[float]:
    """Return the divisor of each rank's sum of losses, so that the sum over ranks is a mean.

    With `rows` every row counts the same. With `ranks` every rank counts the same, even with few
    rows: this is the mean of the ranks' own means. The mean of a rank without rows is 0.
    """
    if weighting == "rows":
        return [sum(map(len, of_rank))] * len(of_rank)
    return [max(1, len(rows)) * len(of_rank) for rows in of_rank]
