"""Measure how far two exact ways of summing a gradient drift apart in float32 under RMSprop.

One process trains on batches of 32; another, from the same weights, on the same rows in the same
order, adds the gradients of two halves of 16. In exact arithmetic the losses are equal at every
step: what differs is rounding, which RMSprop amplifies, since its first step moves every weight by
the same amount whatever the size of its gradient. Two ranks must not differ from one by more.

Prints, per step, the median and the largest relative difference of the loss over the seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
import pandas as pd
import tensorflow as tf

from escala.data.base import Arrays
from escala.training.shards import batches, epoch_order
from escala.workloads.virus_cnn import model as virus_cnn


def losses(
    data: Arrays, seed: int, parts: int, steps: int, batch: int = 32, learning_rate: float = 0.001
) -> np.ndarray:
    """Return the loss of each step, float64 (steps,), its gradient summed in `parts` parts."""
    tf.keras.utils.set_random_seed(seed)
    model = virus_cnn.network(*data.inputs[0].shape, len(data.description["classes"]))
    optimizer = virus_cnn.optimizer({}, learning_rate, {"optimizer": "keras"})
    variables = model.trainable_variables

    @tf.function(reduce_retracing=True)
    def gradients(codes, labels, total):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(virus_cnn.row_losses(labels, model(codes, training=True), {}))
            part = loss / total
        return loss, [tf.convert_to_tensor(g) for g in tape.gradient(part, variables)]

    result = []
    for pieces in _pieces(data.rows("train"), seed, parts, steps, batch):
        total = sum(map(len, pieces))
        gathered = [data.gather("train", rows) for rows in pieces if len(rows)]
        done = [gradients(*codes, labels, np.float32(total)) for codes, labels in gathered]
        summed = [tf.add_n(list(g)) for g in zip(*(d[1] for d in done), strict=True)]
        optimizer.apply_gradients(zip(summed, variables, strict=True))
        result.append(sum(float(d[0]) for d in done) / total)
    return np.array(result)


def _pieces(rows: int, seed: int, parts: int, steps: int, batch: int) -> Iterator[list]:
    """Yield, for each of `steps` steps over as many epochs as it takes, the part of every rank."""
    fractions = np.full(parts, 1 / parts)
    steps_of_ranks = (
        batches(epoch_order(rows, seed, epoch), batch, fractions) for epoch in count(1)
    )
    return islice(chain.from_iterable(steps_of_ranks), steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("split", type=Path, help="folder of a split, with train.npy")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=0.001)
    arguments = parser.parse_args()
    data = Arrays(arguments.split)
    drift = []
    for seed in range(arguments.seeds):
        whole, halves = (
            losses(data, seed, parts, arguments.steps, learning_rate=arguments.learning_rate)
            for parts in (1, 2)
        )
        drift.append(np.abs(whole - halves) / whole)
    table = pd.DataFrame(drift).T
    table.index += 1
    summary = pd.DataFrame({"median": table.median(axis=1), "max": table.max(axis=1)})
    print(summary.rename_axis("step").to_string(float_format="{:.1e}".format))


if __name__ == "__main__":
    main()
