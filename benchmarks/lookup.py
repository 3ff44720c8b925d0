"""What computing the convolutions by lookups makes of a training step, on one core.

The two steps of a pair, by layers and by lookup, follow each other, now one first and now the
other, on the same random rows; each is the median of some. Prints for each length the milliseconds
of both, the ratio lookup : layers of the medians and of every pair, and then where the step by
lookup spends its time: the same graph, cut after each part.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from escala.workloads import virus_cnn

CLASSES = 5


def training(model: tf.keras.Model, codes: tf.Tensor, labels: tf.Tensor) -> dict[str, Callable]:
    """Return the compiled `step` of a model, and what it is made of.

    Returns
    -------
    `stem forward`, `stem forward and backward`, `forward and backward`, `optimizer` and `step`. The
    stem is all that stands before `Flatten`.
    """
    optimizer = virus_cnn.optimizer(0.0001)
    optimizer.build(model.trainable_variables)
    flatten = next(layer for layer in model.layers if isinstance(layer, tf.keras.layers.Flatten))
    stem = tf.keras.Model(model.inputs, flatten.input)
    upstream = tf.random.normal((len(codes), *stem.output_shape[1:]))
    constants = [tf.random.normal(v.shape, stddev=1e-3) for v in model.trainable_variables]

    def stem_gradients() -> list:
        with tf.GradientTape() as tape:
            output = stem(codes, training=True)
        return tape.gradient(output, stem.trainable_variables, upstream)

    def gradients() -> list:
        with tf.GradientTape() as tape:
            probabilities = model(codes, training=True)
            loss = tf.reduce_mean(virus_cnn.row_losses(labels, probabilities))
        return tape.gradient(loss, model.trainable_variables)

    def apply(of_variables: list) -> None:
        optimizer.apply_gradients(zip(of_variables, model.trainable_variables, strict=True))

    parts = {
        "stem forward": lambda: stem(codes, training=True),
        "stem forward and backward": stem_gradients,
        "forward and backward": gradients,
        "optimizer": lambda: apply(constants),
        "step": lambda: apply(gradients()),
    }
    return {name: tf.function(part) for name, part in parts.items()}


def milliseconds(step: Callable, repetitions: int) -> float:
    """Return the median of that many steps, after one that is not counted."""
    step()
    found = []
    for _ in range(repetitions):
        start = time.perf_counter()
        step()
        found.append(1000 * (time.perf_counter() - start))
    return statistics.median(found)


def spread(values: list[float], digits: int) -> str:
    """Return the median and the range of some values."""
    low, middle, high = (f"{f(values):.{digits}f}" for f in (min, statistics.median, max))
    return f"{middle} ({low} to {high}, n = {len(values)})"


def compare(length: int, batch: int, pairs: int, repetitions: int) -> None:
    random = np.random.default_rng(0)
    codes = tf.constant(random.integers(1, virus_cnn.CODES, (batch, length)), tf.uint8)
    labels = tf.constant(random.integers(0, CLASSES, batch))
    models = {stem: virus_cnn.model(length, CLASSES, stem) for stem in ("layers", "lookup")}
    models["lookup"].set_weights(models["layers"].get_weights())
    trainings = {stem: training(model, codes, labels) for stem, model in models.items()}
    found = {stem: [] for stem in models}
    for pair in range(pairs):
        for stem in list(models)[:: 1 if pair % 2 == 0 else -1]:
            found[stem].append(milliseconds(trainings[stem]["step"], repetitions))
    by_layers, by_lookup = found["layers"], found["lookup"]
    print(f"{length} letters, {batch} rows, one core")
    print(f"  by layers: {spread(by_layers, 2)} ms")
    print(f"  by lookup: {spread(by_lookup, 2)} ms")
    ratio = statistics.median(by_lookup) / statistics.median(by_layers)
    print(f"  ratio of the medians: {ratio:.3f}")
    of_pairs = [lookup / layer for lookup, layer in zip(by_lookup, by_layers, strict=True)]
    print(f"  ratios, pair by pair: {spread(of_pairs, 3)}")
    for name, part in trainings["lookup"].items():
        print(f"  by lookup, {name}: {milliseconds(part, pairs * repetitions):.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 6000])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--repetitions", type=int, default=5, help="steps of each in a pair (5)")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for length in arguments.lengths:
        compare(length, arguments.batch, arguments.pairs, arguments.repetitions)


if __name__ == "__main__":
    main()
