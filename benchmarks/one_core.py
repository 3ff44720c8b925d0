"""Measure a training step on one core: the plain layers, faster ways, and the limits of the core.

Each way of training has a process of its own, all on the same core, which work in turns, now in
one order and now in the other; what a turn gives is the median of some steps on random rows,
gathered anew for each. Prints for each length the milliseconds of every way and its ratio to the
plain layers, the median over the rounds with its 95 % interval. Then what the core can do, measured
in the same rounds, what a step has to do at least, and how near the fastest way comes to that.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

import numpy as np

from benchmarks.common import interval, on_cores, seconds, tensorflow_threads, turns

CLASSES = 5
LEARNING_RATE = 0.0001
#: Name -> the knobs of a variant that it trains by.
WAYS = {
    "plain layers": {"convolution": "layers", "optimizer": "keras"},
    "lookup": {"convolution": "lookup-table", "optimizer": "keras"},
    "fused update": {"convolution": "layers", "optimizer": "fused"},
    "lookup, fused update": {"convolution": "lookup-table", "optimizer": "fused"},
    "lookup, update in one pass": {"convolution": "lookup-table", "optimizer": "one-pass"},
    "all by operations": {
        "convolution": "lookup-operation",
        "optimizer": "one-pass",
        "input_gradient": "operation",
    },
}
PLAIN, FUSED, FASTEST = "plain layers", "lookup, fused update", "all by operations"
FIT = "model.fit as published"
#: Of a square product, float32.
PRODUCT_SIDE = 2048


def step_seconds(knobs: dict, length: int, batch: int, steps: int) -> Callable[[], float]:
    """Return what trains that many steps, as `escala.training.train`, and gives their median."""
    import tensorflow as tf

    from escala.engines.tensorflow import step as training_step
    from escala.engines.tensorflow.exchanges import local_factors, methods
    from escala.workloads.virus_cnn import model as virus_cnn

    model = virus_cnn.network(length, CLASSES, knobs["convolution"])
    optimizer = virus_cnn.optimizer({}, LEARNING_RATE, knobs)
    optimizer.build(model.trainable_variables)
    compute = training_step.computing(
        model,
        partial(virus_cnn.row_losses, settings={}),
        training_step.most_probable_is_right,
        methods(
            model,
            local_factors(model, optimizer),
            None,
            knobs.get("input_gradient", "tensorflow"),
        ),
        [],
        training_step.local_sum,
    )
    weights, divisor = np.ones(batch, np.float32), np.float32(batch)

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, length), tf.uint8),
            tf.TensorSpec((None,), tf.int64),
            tf.TensorSpec((None,), tf.float32),
            tf.TensorSpec((), tf.float32),
        ]
    )
    def step(*arguments):
        gradients, loss, _ = compute(*arguments)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    codes, labels = rows(length, batch * steps)
    order = np.random.default_rng(1)

    def one_step(selected: np.ndarray) -> None:
        float(step(codes[selected], labels[selected], weights, divisor))

    def milliseconds() -> float:
        parts = np.split(order.permutation(len(codes)), steps)
        return 1000 * statistics.median(seconds(one_step, selected) for selected in parts)

    return milliseconds


def fit_seconds(length: int, batch: int, steps: int) -> Callable[[], float]:
    """Return the same for `model.fit` on arrays, with the options the source work gave it."""
    import tensorflow as tf

    from escala.workloads.virus_cnn import model as virus_cnn

    model = virus_cnn.network(length, CLASSES)
    model.compile("rmsprop", "categorical_crossentropy", metrics=["accuracy"])
    codes, labels = rows(length, batch * (steps + 1))
    one_hot = tf.keras.utils.to_categorical(labels, CLASSES)

    def milliseconds() -> float:
        moments = []
        note = tf.keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda *_: moments.append(1000 * time.perf_counter())
        )
        model.fit(codes, one_hot, batch_size=batch, verbose=0, callbacks=[note])
        return statistics.median(np.diff(moments))

    return milliseconds


def product_rate() -> Callable[[], float]:
    """Return what gives the core's billions of operations a second in a large product."""
    import tensorflow as tf

    square = tf.random.normal((PRODUCT_SIDE, PRODUCT_SIDE))
    multiply = tf.function(lambda: tf.matmul(square, square))
    return lambda: 2 * PRODUCT_SIDE**3 / seconds(multiply) / 1e9


def sum_rate(length: int) -> Callable[[], float]:
    """Return what gives the billions of bytes a second that the core reads and writes in a sum.

    The arrays are as large as the weights of the dense layers, because a cache may hold these. One
    is changed in place, as an update does it.
    """
    one, other = (np.ones(sum(dense_layers(length)), np.float32) for _ in range(2))
    return lambda: 3 * one.nbytes / seconds(lambda: np.add(one, other, out=one)) / 1e9


def rows(length: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random codes, uint8 (rows, length), and classes, int64 (rows,)."""
    random = np.random.default_rng(0)
    codes = random.integers(1, 5, (count, length), dtype=np.uint8)
    return codes, random.integers(0, CLASSES, count)


def work(make: Callable, arguments: tuple, pipe: Connection) -> None:
    """Be a process that measures once for each message, and once before any."""
    tensorflow_threads()
    measure = make(*arguments)
    measure()
    pipe.send(None)
    for _ in iter(pipe.recv, None):
        pipe.send(measure())


def rounds(tasks: dict[str, tuple], count: int) -> dict[str, list[float]]:
    """Return what each task measures in each round.

    Parameters
    ----------
    tasks : a function above and its arguments.
    """
    context, pipes = multiprocessing.get_context("spawn"), {}
    for name, (make, *arguments) in tasks.items():
        pipes[name], theirs = context.Pipe()
        context.Process(target=work, args=(make, tuple(arguments), theirs), daemon=True).start()
        # Or the end of the process would leave the pipe open, and the wait for it would not end.
        theirs.close()
        try:
            pipes[name].recv()
        except EOFError:
            sys.exit(f"one_core: '{name}' ended before it measured; what it said stands above")
    found = {name: [] for name in tasks}
    for number in range(count):
        for name in turns(list(tasks), number):
            pipes[name].send("measure")
            found[name].append(pipes[name].recv())
    for pipe in pipes.values():
        pipe.send(None)
    return found


def dense_layers(length: int) -> list[int]:
    """Return the number of weights of each dense layer."""
    from escala.workloads.virus_cnn import model as virus_cnn

    return [
        int(np.prod(weight.shape))
        for layer in virus_cnn.network(length, CLASSES).layers
        for weight in layer.weights
        if layer.name.startswith("dense") and len(weight.shape) == 2
    ]


def compare(length: int, batch: int, steps: int, count: int) -> None:
    tasks = {name: (step_seconds, knobs, length, batch, steps) for name, knobs in WAYS.items()}
    tasks |= {FIT: (fit_seconds, length, batch, steps)}
    found = rounds(tasks | {"product": (product_rate,), "sum": (sum_rate, length)}, count)
    print(f"{length} letters, {batch} rows, one core, {count} rounds of {steps} steps")
    for name in tasks:
        ratios = [one / plain for one, plain in zip(found[name], found[PLAIN], strict=True)]
        print(f"  {name}: {interval(found[name])} ms")
        if name != PLAIN:
            print(f"    to {PLAIN}: {interval(ratios, 3)}")
    published = [fit / fast for fit, fast in zip(found[FIT], found[FASTEST], strict=True)]
    print(f"  {FIT} to {FASTEST}: {interval(published)}")
    limits(found, length, batch)


def limits(found: dict[str, list[float]], length: int, batch: int) -> None:
    """Print what the dense layers' products and weights take at the core's own speed.

    Each has three products in a step. Its weights are read twice for them, and the update reads and
    writes weights and mean squares. Without the update in one pass, the gradient is also written
    once and read once.
    """
    weights = sum(dense_layers(length))
    peak, bandwidth = max(found["product"]), max(found["sum"])
    operations = 3 * 2 * batch * weights / 1e9
    products = 1000 * operations / peak
    print(f"  the core: {peak:.0f} GFLOP/s in a product, {bandwidth:.0f} GB/s in a sum, at best")
    print(f"  dense products: {1000 * operations:.0f} MFLOP, at least {products:.2f} ms")
    for way, arrays in ((FUSED, 8), (FASTEST, 6)):
        moved = arrays * 4 * weights / 1e9
        least = products + 1000 * moved / bandwidth
        steps = [each / least for each in found[way]]
        print(
            f"  {way}: {1000 * moved:.0f} MB of dense arrays, at least {least:.2f} ms with products"
        )
        print(f"    a step takes {interval(steps)} times as long", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 6000])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=7, help="of each way in a round (7)")
    arguments = parser.parse_args()
    if min(arguments.batch, arguments.rounds, arguments.steps) < 1:
        parser.error("--batch, --rounds and --steps: one at least")
    on_cores(1)
    for length in arguments.lengths:
        compare(length, arguments.batch, arguments.steps, arguments.rounds)


if __name__ == "__main__":
    main()
