"""The work of each of two ranks in `test_exchange`: `python exchange.py FOLDER CASE…`.

One start of TensorFlow serves all cases: the ranks train the same small model under every strategy,
one after the other, and rank 0 also trains it with Keras's own loop, rank 1 as mirrored ranks.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, regularizers

from escala.core.errors import Unavailable
from escala.core.files import write_json
from escala.engines.tensorflow.engine import set_threads
from escala.engines.tensorflow.fast.rmsprop import OnePassRMSprop
from escala.strategies.base import Place
from escala.training import train
from escala.training.shards import Shards, gather
from escala.training.train import warm_up
from escala.workloads.models import WEIGHTS
from escala.workloads.resnet34.model import NORMALISATIONS
from tests.conftest import KNOBS
from tests.workflow.real_ranks import place, plan, ranks_by, trained

ROWS, BATCH, EPOCHS, LENGTH, CLASSES = 20, 8, 2, 24, 3
SEED, RATE, WORDS = 5, 0.05, 400
SYNCHRONISED = {"batch_norm": "synchronised"}
ONE_PASS = {"optimizer": "one-pass"}
IN_MEMORY = {"dense_exchange": "shared-memory"}
FACTORS = {"dense_exchange": "factors"}
ROWS_OF_EMBEDDING = {"sparse_as_dense": False}
#: Of the three steps of an epoch, the last has fewer rows and is a call of its own.
TWO_STEPS = {"steps_per_call": 2}
UNEVEN, IDLE = [0.75, 0.25], [1.0, 0.0]


def fused() -> tf.keras.optimizers.Optimizer:
    """Return gradient descent whose updates XLA compiles, on a processor too."""
    selected = tf.keras.optimizers.SGD(RATE)
    selected.jit_compile = True
    return selected


#: With its own small epsilon, RMSprop would make the rounding of gradients near 0 as large as any
#: other update.
SETTINGS = {"learning_rate": 0.002, "epsilon": 1e-5}
OPTIMIZERS = {
    "keras": lambda: tf.keras.optimizers.SGD(RATE),
    "fused": fused,
    "one-pass": lambda: OnePassRMSprop(**SETTINGS),
    "rmsprop": lambda: tf.keras.optimizers.RMSprop(**SETTINGS),
    # Weights decay without a gradient.
    "adamw": lambda: tf.keras.optimizers.AdamW(weight_decay=0.1, **SETTINGS),
}
#: Strategy, its knobs, and the part of every batch that each rank takes of those by speed. Each
#: exchange meets each kind of fractions, and an optimizer of each kind, in some case. Where a rank
#: is idle, each step is a call of its own.
CASES = {
    "horovod-mpi": ("horovod-mpi", {}, None),
    "by ranks, in parts": ("horovod-mpi", {"weighting": "ranks", "accumulation": 3}, None),
    "factors, idle rank": ("hybrid", FACTORS, IDLE),
    "one-pass, factors, two steps a call": ("hybrid", ONE_PASS | FACTORS | TWO_STEPS, UNEVEN),
    "one-pass in shared memory, rows": (
        "horovod-mpi", ONE_PASS | IN_MEMORY | ROWS_OF_EMBEDDING, None,
    ),
    "shared memory, fused, idle rank": ("hybrid", IN_MEMORY | {"optimizer": "fused"}, IDLE),
    "adamw in shared memory, two steps a call": (
        "hybrid", IN_MEMORY | TWO_STEPS | {"optimizer": "adamw"}, UNEVEN,
    ),
    "leading": ("horovod-mpi", {"shard": "leading", "evaluation": "whole"}, None),
    "synchronised, two steps a call": ("horovod-mpi", SYNCHRONISED | TWO_STEPS, None),
    "synchronised, idle rank": ("hybrid", SYNCHRONISED, IDLE),
}  # fmt: skip
#: Cases that meet again what the others show.
SWEPT = (
    "by ranks, in parts", "factors, idle rank", "one-pass in shared memory, rows",
    "adamw in shared memory, two steps a call", "synchronised, idle rank",
    "single, two steps a call", "one-pass single", "mirrored, rows",
)  # fmt: skip
#: Gradients are rounded on their way: it trains alike, and not the same.
ROUNDED = {"rounded": ("horovod-mpi", {"compression": "fp16"}, None)}
CLOCKED = "horovod-mpi"
#: What one process does by itself, and which of the two.
ALONE = {
    "single, two steps a call": ("single", TWO_STEPS | {"accumulation": 2}, None),
    "one-pass single": ("single", ONE_PASS, None),
    "mirrored, rows": ("mirrored", ROWS_OF_EMBEDDING, None),
    "synchronised mirrored": ("mirrored", SYNCHRONISED, None),
}
#: File of the reason why one process does not train.
REFUSED = "refused"
#: The fractions by which a process warmed up, one list after the other.
WARM = "warm{}.json"
BY = {"single": 0, "mirrored": 1}
#: What Keras's own loop trains: rows of each batch, the class of layers that normalise, and the
#: optimizer.
REFERENCES = {
    "plain": (BATCH, None, "keras"),
    "leading": (BATCH // 2, None, "keras"),
    "synchronised": (BATCH, layers.BatchNormalization, "keras"),
    "one-pass": (BATCH, None, "rmsprop"),
    "adamw": (BATCH, None, "adamw"),
}


def reference_of(case: str) -> str:
    """Return the name of the reference that a case is compared with."""
    first = case.partition(" ")[0].rstrip(",")
    return first if first in REFERENCES else "plain"


def model(length: int, classes: int, normalisation: type | None = None) -> tf.keras.Model:
    """Return a network with what an exchange can go wrong with.

    Two layers have one name and one shape. Kernels, a bias and the output of a layer are
    regularised. So is the kernel of one of the two wide layers, whose factors are small. A step
    reads so few rows of the embedding that gathering them is fewer bytes than a sum.
    With `normalisation` two layers of that class normalise pictures and vectors.
    """

    def within(name: str) -> tf.keras.Model:
        same = layers.Dense(16, "tanh", name="same", kernel_regularizer=regularizers.L2(0.02))
        return tf.keras.Sequential([layers.Input((16,)), same], name=name)

    return tf.keras.Sequential(
        [
            layers.Input((length,), dtype="uint8"),
            layers.Embedding(WORDS, 4),
            *([layers.Reshape((6, 4, 4)), normalisation(momentum=0.8)] if normalisation else []),
            layers.Flatten(),
            layers.Dense(1600, "relu", bias_regularizer=regularizers.L2(0.3)),
            layers.Dense(96, "relu", kernel_regularizer=regularizers.L2(0.01)),
            layers.Dense(16, "tanh", activity_regularizer=regularizers.L2(0.1)),
            *([normalisation(momentum=0.8)] if normalisation else []),
            within("one"),
            within("other"),
            layers.Dense(classes, "softmax"),
        ]
    )


WORKLOAD = SimpleNamespace(
    build=lambda specs, outputs, settings, knobs: model(
        *specs[0].shape, *outputs, NORMALISATIONS.get(knobs.get("batch_norm"))
    ),
    optimizer=lambda settings, rate, knobs: OPTIMIZERS[knobs["optimizer"]](),
    row_losses=lambda targets, outputs, settings: tf.keras.losses.sparse_categorical_crossentropy(
        targets, outputs
    ),
)


def write_data(folder: Path) -> None:
    random = np.random.default_rng(0)
    for side in ("train", "test"):
        np.save(folder / f"{side}.npy", random.integers(0, 5, (ROWS, LENGTH), np.uint8))
        np.save(folder / f"{side}_labels.npy", random.integers(0, CLASSES, ROWS))
    codes = {"name": "codes", "shape": [LENGTH], "dtype": "uint8", "file": "{side}.npy"}
    labels = {"name": "labels", "shape": [], "dtype": "int64", "file": "{side}_labels.npy"}
    rows = {"train": ROWS, "test": ROWS}
    description = {"classes": list("ABC"), "inputs": [codes], "targets": labels, "rows": rows}
    write_json(folder / "dataset.json", description)


def request(data: Path, strategy: str, knobs: dict, instrument: str | None) -> dict:
    return plan(
        data, "peculiar", strategy, knobs, {"epochs": EPOCHS}, rows=ROWS, batch=BATCH, rate=RATE,
        seed=SEED, instrument=instrument,
    )  # fmt: skip


def place_of(strategy: str, process: int) -> Place:
    if strategy not in BY:
        return place(process, 2, [process])
    return place(0, 1, [0, 1] if strategy == "mirrored" else [0])


def stated(fractions: list[float], process: int, engine, data, *_) -> np.ndarray:
    """Return stated fractions, after a step of rank 0 alone, in place of fractions by speed.

    If ranks exchanged anything while they measure their speed, rank 0 would wait for ever.
    """
    if process == 0:
        engine.step_alone(gather(data, np.arange(2), 2.0))
    return np.array(fractions)


def warmed(found: list[list[float]], engine, data, batch, fractions, rows) -> None:
    """Warm up, and note by which fractions."""
    found.append(list(fractions))
    warm_up(engine, data, batch, fractions, rows)


def reference(
    data: Path, first: int, normalisation: type | None, optimizer: str
) -> tuple[dict, list[np.ndarray]]:
    """Return the losses of each step and of the test rows, and the weights, by Keras's own loop.

    Parameters
    ----------
    first : rows of a whole batch to train on, in proportion in the last and smaller one.
    normalisation : class of layers that normalise, if there are any.
    optimizer : one of `OPTIMIZERS`.
    """
    sides = {
        side: [np.load(data / f"{side}{part}.npy") for part in ("", "_labels")]
        for side in ("train", "test")
    }
    tf.keras.utils.set_random_seed(SEED)
    network = model(LENGTH, CLASSES, normalisation)
    network.compile(OPTIMIZERS[optimizer](), "sparse_categorical_crossentropy")
    shards = Shards(SEED, ROWS, BATCH, [1.0])
    losses = [
        network.train_on_batch(
            *(each[rows[: len(rows) * first // BATCH]] for each in sides["train"]),
            reset_metrics=True,
        )
        for epoch in range(1, EPOCHS + 1)
        for (rows,) in shards.epoch_batches(epoch)
    ]
    test_loss = network.evaluate(*sides["test"], verbose=0)
    return {"steps": losses, "test": test_loss}, network.get_weights()


def main(folder: Path, names: list[str]) -> None:
    data = folder / "data"
    set_threads({"intra_op": 1, "inter_op": 1})
    mirrored = ranks_by("mirrored", KNOBS, place_of("mirrored", 0))
    mirrored.start()
    started = {"mirrored": mirrored}
    started["horovod-mpi"] = ranks_by("horovod-mpi", KNOBS, None)
    (process,), ranks = started["horovod-mpi"].start()
    train.workload, train.model_knobs = lambda *_: WORKLOAD, lambda knobs, name: knobs
    train.scores_module = lambda name: None
    cases = {name: (CASES | ROUNDED | ALONE)[name] for name in names}
    for name, (strategy, knobs, fractions) in cases.items():
        if BY.get(strategy, process) != process:
            continue
        asked = request(data, strategy, knobs, "clocks" if name == CLOCKED else None)
        used = started.get(strategy) or ranks_by(strategy, asked["knobs"], None)
        if strategy not in started:
            used.start()
        train.fractions_by_speed = partial(stated, fractions, process)
        total = 1 if strategy == "single" else ranks
        warm: list[list[float]] = []
        train.warm_up = partial(warmed, warm)
        trained(asked, used, place_of(strategy, process), total, folder / name)
        write_json(folder / name / WARM.format(place_of(strategy, process).process), warm)
    if process == 0:
        for name in {"plain", *map(reference_of, names)}:
            losses, weights = reference(data, *REFERENCES[name])
            (folder / "keras" / name).mkdir(parents=True)
            write_json(folder / "keras" / name / "losses.json", losses)
            np.savez(folder / "keras" / name / WEIGHTS, *weights)
        refused = request(data, "single", SYNCHRONISED | {"accumulation": 2}, None)
        single = ranks_by("single", refused["knobs"], place_of("single", 0))
        try:
            trained(refused, single, place_of("single", 0), 1, folder / "not")
        except Unavailable as error:
            (folder / REFUSED).write_text(str(error))
    started["horovod-mpi"].stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
