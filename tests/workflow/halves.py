"""The losses of one process that sums each gradient in parts, which differ by rounding alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, islice

import numpy as np
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
