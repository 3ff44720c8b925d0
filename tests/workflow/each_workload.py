"""The work of each of two ranks in `test_each_workload`: `python each_workload.py FOLDER NAME…`.

Both ranks train each workload of these names together, from its own code and under its own
optimizer. Then one of them trains it by itself, and the other with Keras's own `fit`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from escala.core.files import write_json
from escala.data import DEFAULT_KIND, reader
from escala.data.base import Spec, output_shape
from escala.data.captions.words import END, START
from escala.data.splits import Side, write_split
from escala.engines.tensorflow.engine import set_threads
from escala.training.shards import epoch_order
from escala.workloads import WORKLOADS, workload
from escala.workloads.models import WEIGHTS, given
from tests.conftest import KNOBS
from tests.workflow.real_ranks import NO_KNOBS, place, plan, ranks_by, trained

#: The last step of an epoch has one row, so one of two ranks has none.
ROWS = {"train": 17, "test": 5}
BATCH, EPOCHS, STEPS, SEED = 8, 2, 3, 5
TOGETHER, ALONE, KERAS = "together", "alone", "keras"
#: Weights before training, alongside `WEIGHTS`.
FIRST = "first.npz"
CROSS_ENTROPY = "sparse_categorical_crossentropy"


def caption_loss(words: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the cross-entropy of each picture's next words, by Keras's loss of single words."""
    word_losses = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=0, reduction="none"
    )
    return tf.reduce_sum(word_losses(words, logits), axis=[1, 2])


class Case(NamedTuple):
    """A workload with tiny data.

    Attributes
    ----------
    inputs : their form; whole numbers are drawn from 0 to below a limit.
    classes : their number, None for captions.
    settings : those of the workload that are not the defaults, without dropout, of which every rank
        draws its own.
    loss, optimizer : of Keras's `fit`.
    rate : learning rate.
    knobs : of the workload and of the two ranks. `synchronised` normalises the rows of both ranks
        together, as Keras's layer normalises those of one process.
    keras_knobs : knobs of the workload in Keras's `fit`.
    """

    inputs: tuple[Spec, ...]
    classes: int | None
    settings: Mapping[str, object]
    loss: str | Callable
    optimizer: type[tf.keras.optimizers.Optimizer]
    rate: float
    knobs: Mapping[str, object] = NO_KNOBS
    keras_knobs: Mapping[str, object] = NO_KNOBS


OPTIMIZERS = tf.keras.optimizers
VIRUS = "virus-cnn"
PLAIN = {"convolution": "layers", "optimizer": "keras"}
CASES = {
    VIRUS: Case(
        (Spec("codes", (60,), "uint8", 5),), 5, {}, CROSS_ENTROPY, OPTIMIZERS.RMSprop, 0.001,
        PLAIN, PLAIN,
    ),
    "mlp": Case(
        (Spec("features", (6,), "float32"),), 3,
        {"layers": [8, 8], "activation": "sigmoid", "cost": "cross-entropy"},
        CROSS_ENTROPY, OPTIMIZERS.SGD, 0.5,
    ),
    "tal1-cnn": Case(
        (Spec("sequence", (60, 4), "uint8", 2),), 2, {"filters": 16, "width": 15},
        CROSS_ENTROPY, OPTIMIZERS.Adam, 0.01,
    ),
    "mnist-mlp": Case(
        (Spec("image", (8, 8, 1), "uint8", 256),), 3, {"neurons": [16, 16], "dropout": 0.0},
        CROSS_ENTROPY, OPTIMIZERS.RMSprop, 0.001,
    ),
    "cifar-cnn": Case(
        (Spec("image", (22, 22, 3), "uint8", 256),), 3, {"dropout": 0.0},
        CROSS_ENTROPY, OPTIMIZERS.RMSprop, 0.001,
    ),
    "resnet34": Case(
        (Spec("image", (48, 48, 1), "float16"),), 3, {"depth": 10, "width": 4},
        CROSS_ENTROPY, OPTIMIZERS.SGD, 0.02,
        {"batch_norm": "synchronised"}, {"batch_norm": "local"},
    ),
    # So many features that an exchange of factors saves bytes.
    "caption-lstm": Case(
        (Spec("features", (4096,), "float16"), Spec("words", (2, 6), "uint16", 12)), None,
        {"width": 32, "dropout": 0.0, "optimizer": "adam", "beam": 1},
        caption_loss, OPTIMIZERS.Adam, 0.01, {"dense_exchange": "factors"},
    ),
}  # fmt: skip
#: Functional models of one input and of two.
CLOCKED = ("mnist-mlp", "caption-lstm")


def write_data(case: Case, folder: Path) -> None:
    """Write rows at random as a split."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    write_split(
        folder,
        {side: drawn(case, rows, random) for side, rows in ROWS.items()},
        kind=DEFAULT_KIND,
        name="few",
        seed=0,
        provenance="simulated",
        classes=case.classes and [f"c{number}" for number in range(case.classes)],
        below={spec.name: spec.below for spec in case.inputs if spec.below},
    )


def drawn(case: Case, rows: int, random: np.random.Generator) -> Side:
    """Return rows of a case: captions of 1 to 5 words with their next words, or classes."""
    arrays = {
        spec.name: random.integers(spec.below, size=(rows, *spec.shape)).astype(spec.dtype)
        if spec.below
        else random.normal(size=(rows, *spec.shape)).astype(spec.dtype)
        for spec in case.inputs
    }
    if case.classes:
        return Side(arrays, random.integers(case.classes, size=rows))
    _, words = case.inputs
    ends = random.integers(1, words.shape[1], (rows, words.shape[0], 1))
    at = np.arange(words.shape[1])
    numbers = random.integers(END + 2, words.below, (rows, *words.shape))
    targets = np.where(at < ends, numbers, np.where(at == ends, END, 0)).astype(words.dtype)
    arrays["words"] = np.where(at <= ends, np.roll(targets, 1, axis=-1), 0).astype(words.dtype)
    arrays["words"][..., 0] = START
    return Side(arrays, targets)


def settings_of(name: str) -> dict:
    return WORKLOADS[name].setting_defaults | CASES[name].settings


def request(name: str, data: Path, strategy: str, instrument: str | None = None) -> dict:
    case = CASES[name]
    return plan(
        data, name, strategy, case.knobs, {"epochs": EPOCHS, **settings_of(name)},
        rows=ROWS["train"], batch=BATCH, rate=case.rate, seed=SEED, instrument=instrument,
    )  # fmt: skip


def train_by_keras(name: str, data: Path, folder: Path) -> None:
    """Train a workload's network with Keras's own `fit`, in the order of the rows in a run.

    The folder receives the loss of each epoch, that of the test rows at the end, and the weights.
    """
    case, arrays = CASES[name], reader(data)
    tf.keras.utils.set_random_seed(SEED)
    outputs = output_shape(arrays.description)
    model = workload(name).build(arrays.inputs, outputs, settings_of(name), case.keras_knobs)
    model.compile(case.optimizer(case.rate), case.loss)
    folder.mkdir(parents=True)
    np.savez(folder / FIRST, *model.get_weights())
    losses = []
    for epoch in range(1, EPOCHS + 1):
        order = epoch_order(arrays.rows("train"), SEED, epoch)
        inputs, targets = arrays.gather("train", order)
        fitted = model.fit(given(inputs), targets, batch_size=BATCH, shuffle=False, verbose=0)
        losses += fitted.history["loss"]
    inputs, targets = arrays.gather("test", slice(None))
    test_loss = model.evaluate(given(inputs), targets, verbose=0)
    write_json(folder / "losses.json", {"epochs": losses, "test": test_loss})
    np.savez(folder / WEIGHTS, *model.get_weights())


def main(folder: Path, names: list[str]) -> None:
    set_threads({"intra_op": 1, "inter_op": 1})
    pair, single = (ranks_by(name, KNOBS, None) for name in ("horovod-mpi", "single"))
    (process,), ranks = pair.start()
    for name in names:
        probe = "clocks" if name in CLOCKED else None
        asked = request(name, folder / "data" / name, "horovod-mpi", probe)
        trained(asked, pair, place(process, 2, [process]), ranks, folder / TOGETHER / name)
    for name in names:
        data = folder / "data" / name
        if process == 0:
            asked = request(name, data, "single")
            trained(asked, single, place(0, 1, [0]), 1, folder / ALONE / name)
        else:
            train_by_keras(name, data, folder / KERAS / name)
    pair.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
