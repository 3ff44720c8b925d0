"""Compare ways to update a large dense layer's kernel, and to compute its input gradient.

All ways work in turns in one process, on one core unless more threads are asked for, now in one
order and now in the other. Prints the milliseconds of each way, its ratio to the first one over the
matches of a round, with 95 % intervals, and its rates. The rates count the operations of the
product, and the bytes that any way must move: each input read once, each result written once. So a
way that moves more bytes shows a lower rate.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import tensorflow as tf

from benchmarks.common import interval, on_cores, seconds, tensorflow_threads, turns
from escala.engines.tensorflow.dense_operations import input_gradient
from escala.engines.tensorflow.dense_operations.rmsprop import OnePassRMSprop
from escala.engines.tensorflow.factors import Factors

LEARNING_RATE = 0.0001
#: The first dense layer of virus-cnn at lengths 1000 and 6000.
KERNELS = ((15936, 128), (95936, 128))


def updates(shape: tuple[int, int], rows: int) -> dict[str, Callable[[], object]]:
    """Return ways to compute the kernel's gradient and to apply it, by name."""
    factors = Factors(*(tf.random.normal((rows, width)) for width in shape))

    def applying(optimizer: tf.keras.optimizers.Optimizer, whole: bool) -> Callable[[], object]:
        kernel = tf.Variable(tf.random.normal(shape))
        optimizer.build([kernel])

        @tf.function
        def apply() -> tf.Tensor:
            gradient = factors.product() if whole else factors
            return optimizer.apply_gradients([(gradient, kernel)])

        return apply

    compiled = tf.keras.optimizers.RMSprop(LEARNING_RATE)
    # Keras uses this option of the constructor only if there is a GPU.
    compiled.jit_compile = True
    return {
        "product, Keras": applying(tf.keras.optimizers.RMSprop(LEARNING_RATE), True),
        "product, XLA": applying(compiled, True),
        "one pass": applying(OnePassRMSprop(LEARNING_RATE), False),
    }


def input_gradients(shape: tuple[int, int], rows: int) -> dict[str, Callable[[], object]]:
    """Return ways to compute the gradient of the layer's input, by name."""
    kernel, d = tf.Variable(tf.random.normal(shape)), tf.random.normal((rows, shape[1]))
    ways = {
        "d Wᵀ": lambda: tf.matmul(d, kernel, transpose_b=True),
        "W dᵀ": lambda: tf.matmul(kernel, d, transpose_b=True),
        "(W dᵀ)ᵀ": lambda: tf.transpose(tf.matmul(kernel, d, transpose_b=True)),
        "operation": lambda: input_gradient(d, kernel),
    }
    return {name: tf.function(way) for name, way in ways.items()}


def compare(title: str, ways: dict[str, Callable], rounds: int, flop: int, moved: int) -> None:
    """Print what each way takes.

    Parameters
    ----------
    flop, moved : floating-point operations of the product, and the bytes that must be moved.
    """
    found = {name: [] for name in ways}
    for way in ways.values():
        way()
    for number in range(rounds):
        for name in turns(list(ways), number):
            found[name].append(seconds(ways[name]))
    print(title)
    first, *_ = found.values()
    for name, spent in found.items():
        ratios = [one / other for one, other in zip(spent, first, strict=True)]
        middle = statistics.median(spent)
        print(
            f"  {name:15} {interval([1000 * each for each in spent])} ms,"
            f" ratio {interval(ratios)}, {flop / middle / 1e9:.0f} GFLOP/s,"
            f" {moved / middle / 1e9:.1f} GB/s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--threads", type=int, default=1, help="and cores (1)")
    arguments = parser.parse_args()
    if min(*arguments.rows, arguments.rounds, arguments.threads) < 1:
        parser.error("--rows, --rounds and --threads: one at least")
    on_cores(arguments.threads)
    tensorflow_threads(arguments.threads)
    for shape in KERNELS:
        for rows in arguments.rows:
            inputs, outputs = shape
            weights, ends = inputs * outputs, rows * (inputs + outputs)
            flop, where = 2 * rows * weights, f"{inputs} x {outputs}, {rows} rows"
            for what, make, arrays in (
                ("update", updates, 4),
                ("input gradient", input_gradients, 1),
            ):
                moved = 4 * (arrays * weights + ends)
                ways = make(shape, rows)
                compare(f"{what}, {where}", ways, arguments.rounds, flop, moved)


if __name__ == "__main__":
    main()
