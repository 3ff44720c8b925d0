"""Measure the parts of a training step with convolutions by lookup, on one core.

Prints for each length and way of the lookups the milliseconds of the same graph, cut after each
part; each is the median of some steps on the same random rows. What the lookups gain is told by
`one_core.py`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import tensorflow as tf

from benchmarks.common import on_cores, seconds, tensorflow_threads
from benchmarks.one_core import CLASSES, rows
from escala.workloads.virus_cnn import model as virus_cnn


def training(model: tf.keras.Model, codes: tf.Tensor, labels: tf.Tensor) -> dict[str, Callable]:
    """Return the compiled `step` of a model, and what it is made of.

    Returns
    -------
    `stem forward`, `stem forward and backward`, `forward and backward`, `optimizer` and `step`. The
    stem is all that stands before `Flatten`.
    """
    optimizer = virus_cnn.optimizer({}, 0.0001, {"optimizer": "keras"})
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
            loss = tf.reduce_mean(virus_cnn.row_losses(labels, probabilities, {}))
        return tape.gradient(loss, model.trainable_variables)

    def apply(computed: list) -> None:
        optimizer.apply_gradients(zip(computed, model.trainable_variables, strict=True))

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
    return 1000 * statistics.median(seconds(step) for _ in range(repetitions))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 6000])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=35, help="steps of each part (35)")
    arguments = parser.parse_args()
    if min(arguments.batch, arguments.repetitions) < 1:
        parser.error("--batch and --repetitions: one at least")
    if min(arguments.lengths) < 7:
        parser.error("--lengths: 7 at least, shorter rows leave the network nothing to see")
    on_cores(1)
    tensorflow_threads()
    for length in arguments.lengths:
        codes, labels = map(tf.constant, rows(length, arguments.batch))
        for way in ("lookup-table", "lookup-operation"):
            print(f"{length} letters, {arguments.batch} rows, {way}")
            parts = training(virus_cnn.network(length, CLASSES, way), codes, labels)
            for name, part in parts.items():
                print(f"  {name}: {milliseconds(part, arguments.repetitions):.2f} ms", flush=True)


if __name__ == "__main__":
    main()
