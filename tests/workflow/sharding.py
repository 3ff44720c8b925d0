"""The work of each of three ranks in `test_sharding`: `python sharding.py FOLDER`, over Gloo.

The ranks train a model with a large dense layer, whose kernel they cannot divide evenly, by each
exchange. Then they train it again with an interruption, and rank 0 trains it by Keras's own loop.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

from escala.core.files import write_json
from escala.engines.tensorflow.engine import set_threads
from escala.training import train
from escala.training.shards import Shards
from tests.conftest import KNOBS
from tests.workflow.exchange import BATCH, CLASSES, EPOCHS, LENGTH, ROWS, SEED, request
from tests.workflow.real_ranks import place, ranks_by, trained

RANKS, RATE, STRATEGY = 3, 0.02, "horovod-gloo"
#: 601 rows of the larger kernel: one rank has 201, the others 200. In shared memory the parts of
#: the others begin at addresses that TensorFlow does not take.
WIDE, WIDER = 601, 251
#: Cases, which are exchanges, and those that are interrupted after the first epoch.
CASES = ("shared-memory", "factors")
RESUMED = {f"{case}, resumed": case for case in CASES}


def optimizer() -> tf.keras.optimizers.Optimizer:
    return tf.keras.optimizers.SGD(RATE, momentum=0.9)


def model() -> tf.keras.Model:
    return tf.keras.Sequential(
        [
            layers.Input((LENGTH,), dtype="uint8"),
            layers.Embedding(5, 4),
            layers.Flatten(),
            layers.Dense(WIDE, "relu", name="wide"),
            layers.Dense(WIDER, "relu", name="large"),
            layers.Dense(CLASSES, "softmax", name="last"),
        ]
    )


WORKLOAD = SimpleNamespace(
    build=lambda specs, outputs, settings, knobs: model(),
    optimizer=lambda settings, rate, knobs: optimizer(),
    row_losses=lambda targets, outputs, settings: tf.keras.losses.sparse_categorical_crossentropy(
        targets, outputs
    ),
)


def run(folder: Path, name: str, exchange: str, strategy, process: int, epochs: range) -> None:
    """Train for some epochs, from the checkpoint before the first of them."""
    asked = request(folder / "data", STRATEGY, {"dense_exchange": exchange}, None)
    asked["training"] |= {"epochs": epochs[-1], "checkpoint_epochs": 1}
    asked |= {"epochs": epochs[-1], "resume_after": epochs[0] - 1}
    trained(asked, strategy, place(process, RANKS, [process]), RANKS, folder / name)


def reference(data: Path) -> tuple[list[float], list[np.ndarray]]:
    """Return the losses of each step, and all variables, of training by Keras's own loop."""
    codes, labels = (np.load(data / f"train{part}.npy") for part in ("", "_labels"))
    tf.keras.utils.set_random_seed(SEED)
    network, selected = model(), optimizer()
    network.compile(selected, "sparse_categorical_crossentropy")
    shards = Shards(SEED, ROWS, BATCH, [1.0])
    losses = [
        network.train_on_batch(codes[rows], labels[rows], reset_metrics=True)
        for epoch in range(1, EPOCHS + 1)
        for (rows,) in shards.epoch_batches(epoch)
    ]
    return losses, [v.numpy() for v in (*network.variables, *selected.variables)]


def main(folder: Path) -> None:
    from escala.runtime.spawn import process_of_environment

    set_threads({"intra_op": 1, "inter_op": 1})
    process = process_of_environment()
    strategy = ranks_by(STRATEGY, KNOBS, place(process, RANKS, [process]))
    strategy.start()
    train.workload, train.model_knobs = lambda *_: WORKLOAD, lambda knobs, name: knobs
    train.scores_module = lambda name: None
    for case in CASES:
        run(folder, case, case, strategy, process, range(1, EPOCHS + 1))
    for name, case in RESUMED.items():
        for epoch in range(1, EPOCHS + 1):
            run(folder, name, case, strategy, process, range(epoch, epoch + 1))
    if process == 0:
        losses, variables = reference(folder / "data")
        (folder / "keras").mkdir()
        write_json(folder / "keras" / "losses.json", losses)
        np.savez(folder / "keras" / "variables.npz", *variables)
    strategy.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
