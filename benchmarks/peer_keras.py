"""Train the virus CNN by Keras's `fit`, alone or as one of several processes.

`benchmarks.peers` starts it. Several processes use MultiWorkerMirroredStrategy as its guide does:
the model is built and compiled in the strategy's scope, and `fit` gets a dataset of global batches,
which the strategy divides.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from escala.training.shards import epoch_order
from escala.workloads.virus_cnn import model as virus_cnn


class StepSeconds(tf.keras.callbacks.Callback):
    """The seconds of each step, by epoch."""

    def __init__(self):
        super().__init__()
        self.epochs: list[list[float]] = []

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.epochs.append([])

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.epochs[-1].append(time.perf_counter() - self._start)


def dataset(arguments: argparse.Namespace) -> tf.data.Dataset:
    """Return the rows of all epochs in global batches of (codes, targets)."""
    codes, targets = np.load(arguments.codes), np.load(arguments.targets)
    whole = len(codes) // arguments.batch * arguments.batch
    order = [
        epoch_order(len(codes), arguments.seed, epoch)[:whole]
        for epoch in range(1, arguments.epochs + 1)
    ]
    rows = tf.data.Dataset.from_tensor_slices(np.concatenate(order))
    codes, targets = tf.constant(codes), tf.constant(targets)
    batches = rows.batch(arguments.batch, drop_remainder=True)
    batches = batches.map(lambda chosen: (tf.gather(codes, chosen), tf.gather(targets, chosen)))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.with_options(options)


def train(arguments: argparse.Namespace) -> dict:
    """Return the mean loss of the rows of all processes, and the seconds of each step, by epoch."""
    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy()
        if arguments.processes > 1
        else tf.distribute.get_strategy()
    )
    batches = dataset(arguments)
    steps = sum(1 for _ in batches) // arguments.epochs
    with strategy.scope():
        model = virus_cnn.network(np.load(arguments.codes).shape[1], arguments.classes)
        with np.load(arguments.weights) as arrays:
            model.set_weights([arrays[name] for name in arrays.files])
        model.compile(
            tf.keras.optimizers.RMSprop(arguments.learning_rate), "sparse_categorical_crossentropy"
        )
    seconds = StepSeconds()
    history = model.fit(
        batches, epochs=arguments.epochs, steps_per_epoch=steps, verbose=0, callbacks=[seconds]
    )
    return {"losses": history.history["loss"], "step_seconds": seconds.epochs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name in ("codes", "targets", "weights"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    for name in ("rank", "processes", "batch", "epochs", "seed", "classes"):
        parser.add_argument(f"--{name}", required=True, type=int)
    parser.add_argument("--learning-rate", required=True, type=float)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    print(json.dumps(train(arguments)), flush=True)


if __name__ == "__main__":
    main()
