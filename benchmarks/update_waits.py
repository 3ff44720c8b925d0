"""Measure what it saves that an update waits for the last gradient, in blocks of steps in turns.

One process trains `virus-cnn` on one core with random sequences. A block of steps with the wait
and a block without it are a match, now one first and now the other. Prints the ratio with : without
of the matches, with its 95 % interval.
"""

from __future__ import annotations

import argparse
import contextlib

import numpy as np

from benchmarks.common import on_cores, seconds, tensorflow_threads, turns
from escala.analysis.statistics import VALUES_FOR_INTERVAL, ratio_interval
from escala.core.arguments import whole_number
from escala.strategies.knobs import complete

LENGTH, CLASSES, RATE = 1000, 5, 0.001
#: The layers and the optimiser of a step, as knobs.
KINDS = {
    "plain": {"convolution": "layers", "optimizer": "keras"},
    "fused": {"convolution": "lookup-table", "optimizer": "fused"},
    "one-pass": {"convolution": "lookup-operation", "optimizer": "one-pass"},
}


def steps(kind: str, rows: int):
    """Return functions that make a step with and without the wait, of models of their own."""
    import tensorflow as tf

    from escala.workloads.virus_cnn import model as virus_cnn

    knobs = complete(KINDS[kind], "virus-cnn")
    random = np.random.default_rng(0)
    codes = tf.constant(random.integers(0, 5, (rows, LENGTH)), tf.uint8)
    classes = tf.constant(random.integers(0, CLASSES, rows))

    def make(waits: bool):
        model = virus_cnn.network(LENGTH, CLASSES, knobs["convolution"])
        variables = model.trainable_variables
        optimizer = virus_cnn.optimizer({}, RATE, knobs)
        optimizer.build(variables)

        @tf.function(autograph=False)
        def step():
            with tf.GradientTape() as tape:
                loss = virus_cnn.row_losses(classes, model(codes, training=True), {})
            gradients = tape.gradient(loss, variables)
            computed = tf.nest.flatten(gradients, expand_composites=True)
            with tf.control_dependencies(computed) if waits else contextlib.nullcontext():
                optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        return step

    return {waits: make(waits) for waits in (True, False)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--rows", type=whole_number, default=64, help=" ")
    parser.add_argument("--inter-op", type=whole_number, default=2, help="threads")
    parser.add_argument("--matches", type=whole_number, default=20, help="six or more")
    parser.add_argument("--block", type=whole_number, default=8, help="steps of a block")
    arguments = parser.parse_args()
    if arguments.matches < VALUES_FOR_INTERVAL:
        parser.error(f"an interval needs {VALUES_FOR_INTERVAL} matches")
    on_cores(1)
    tensorflow_threads(1, arguments.inter_op)
    both = steps(arguments.kind, arguments.rows)

    def block(waits: bool) -> None:
        for _ in range(arguments.block):
            both[waits]()

    spent: dict[bool, list[float]] = {True: [], False: []}
    for waits in spent:
        block(waits)
    for match in range(arguments.matches):
        for waits in turns((False, True), match):
            spent[waits].append(seconds(block, waits) / arguments.block)
    ratio = ratio_interval(np.divide(spent[True], spent[False]))
    print(
        f"{arguments.kind}, {arguments.rows} rows: {1e3 * np.median(spent[False]):.1f} ms a step "
        f"without, {1e3 * np.median(spent[True]):.1f} ms with; ratio {ratio.estimate:.3f} "
        f"({ratio.low:.3f} to {ratio.high:.3f}, {arguments.matches} matches)"
    )


if __name__ == "__main__":
    main()
