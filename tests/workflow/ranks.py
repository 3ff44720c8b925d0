"""The work of each of two ranks in `test_exchange`: `python ranks.py FOLDER CASE…`.

One start of TensorFlow serves all cases: strategies, workloads and exchanges, each with each in
some case. Both ranks train under Horovod. Rank 1 also trains as one process and as mirrored ranks,
and each trains some networks by Keras's own loop.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, optimizers, regularizers

from escala import engines
from escala.core.errors import Unavailable
from escala.core.files import read_json, write_json
from escala.data import DEFAULT_KIND, reader
from escala.data.base import Spec, output_shape
from escala.data.captions.words import END, START
from escala.data.splits import Side, write_split
from escala.engines.tensorflow.engine import TensorFlow, set_threads
from escala.engines.tensorflow.fast.rmsprop import OnePassRMSprop
from escala.probes import probe_of_plan
from escala.runtime import launch
from escala.runtime.layout import Layout, places
from escala.strategies import STRATEGIES
from escala.strategies.base import Place
from escala.training import train
from escala.training.shards import Shards, gather
from escala.workloads import WORKLOADS, workload
from escala.workloads.models import WEIGHTS, as_model_input
from escala.workloads.resnet34.model import NORMALISATIONS
from tests.conftest import KNOBS, ROOT

BATCH, EPOCHS, TEST_ROWS, SEED, RATE = 8, 2, 5, 5, 0.05
NOTHING: Mapping[str, Any] = MappingProxyType({})
CROSS_ENTROPY = "sparse_categorical_crossentropy"
#: Where one process of the two trains alone.
ALONE = {"single": 1, "mirrored": 1}
FIRST, WARM, REFUSED = "first.npz", "warm{}.json", "refused"


class Network(NamedTuple):
    """A workload with tiny data, as Keras's own loop trains it.

    Attributes
    ----------
    inputs : their form; whole numbers are drawn from 0 to below a limit.
    classes : their number, None for captions.
    rows : for training. With 17, the last step of an epoch has one, so one of two ranks has none.
    """

    inputs: tuple[Spec, ...]
    classes: int | None
    settings: Mapping[str, object] = NOTHING
    optimizer: Callable = optimizers.SGD
    rate: float = RATE
    loss: str | Callable = CROSS_ENTROPY
    knobs: Mapping[str, object] = NOTHING
    rows: int = 17


class Case(NamedTuple):
    """What ranks train.

    Attributes
    ----------
    fractions : of every batch, by speed.
    reference : what Keras's own loop trains, by name in `REFERENCES`.
    """

    strategy: str = "horovod-mpi"
    knobs: Mapping[str, object] = NOTHING
    fractions: list[float] | None = None
    reference: str = "plain"
    network: str = "peculiar"
    clocks: bool = False


def caption_loss(words: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the cross-entropy of each picture's next words, by Keras's loss of single words."""
    word_losses = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=0, reduction="none"
    )
    return tf.reduce_sum(word_losses(words, logits), axis=[1, 2])


NETWORKS = {
    "peculiar": Network((Spec("codes", (25,), "uint8", 5),), 3, rows=20),
    "virus-cnn": Network(
        (Spec("codes", (60,), "uint8", 5),), 5, {}, optimizers.RMSprop, 0.001,
        knobs={"convolution": "layers", "optimizer": "keras"},
    ),
    "mlp": Network(
        (Spec("features", (6,), "float32"),), 3,
        {"layers": [8, 8], "activation": "sigmoid", "cost": "cross-entropy"}, rate=0.5,
    ),
    "tal1-cnn": Network(
        (Spec("sequence", (60, 4), "uint8", 2),), 2, {"filters": 16, "width": 15},
        optimizers.Adam, 0.01,
    ),
    "mnist-mlp": Network(
        (Spec("image", (8, 8, 1), "uint8", 256),), 3, {"neurons": [16, 16], "dropout": 0.0},
        optimizers.RMSprop, 0.001,
    ),
    "cifar-cnn": Network(
        (Spec("image", (22, 22, 3), "uint8", 256),), 3, {"dropout": 0.0},
        optimizers.RMSprop, 0.001,
    ),
    "resnet34": Network(
        (Spec("image", (48, 48, 1), "float16"),), 3, {"depth": 10, "width": 4}, rate=0.02,
        knobs={"batch_norm": "local"},
    ),
    # So many features that an exchange of factors saves bytes.
    "caption-lstm": Network(
        (Spec("features", (4096,), "float16"), Spec("words", (2, 6), "uint16", 12)), None,
        {"width": 32, "dropout": 0.0, "optimizer": "adam", "beam": 1},
        optimizers.Adam, 0.01, caption_loss,
    ),
}  # fmt: skip


def fused() -> tf.keras.optimizers.Optimizer:
    """Return gradient descent whose updates XLA compiles, on a processor too."""
    selected = optimizers.SGD(RATE)
    selected.jit_compile = True
    return selected


#: With its own small epsilon, RMSprop would make the rounding of gradients near 0 as large as any
#: other update.
SETTINGS = {"learning_rate": 0.002, "epsilon": 1e-5}
#: Of the peculiar network, by the knob `optimizer`.
OPTIMIZERS = {
    "keras": lambda: optimizers.SGD(RATE),
    "momentum": lambda: optimizers.SGD(RATE, momentum=0.9),
    "fused": fused,
    "one-pass": lambda: OnePassRMSprop(**SETTINGS),
    "rmsprop": lambda: optimizers.RMSprop(**SETTINGS),
    # Weights decay without a gradient.
    "adamw": lambda: optimizers.AdamW(weight_decay=0.1, **SETTINGS),
}
#: Of the peculiar network: rows of a whole batch to train on, and what normalises and updates.
REFERENCES = {
    "plain": (BATCH, None, "keras"),
    "leading": (BATCH // 2, None, "keras"),
    "synchronised": (BATCH, layers.BatchNormalization, "keras"),
    "momentum": (BATCH, None, "momentum"),
    "one-pass": (BATCH, None, "rmsprop"),
    "adamw": (BATCH, None, "adamw"),
}
SYNCHRONISED = {"batch_norm": "synchronised"}
ONE_PASS, MOMENTUM = {"optimizer": "one-pass"}, {"optimizer": "momentum"}
IN_MEMORY, FACTORS = {"dense_exchange": "shared-memory"}, {"dense_exchange": "factors"}
ROWS_OF_EMBEDDING = {"sparse_as_dense": False}
#: Of the three steps of an epoch, the last has fewer rows and is a call of its own.
TWO_STEPS = {"steps_per_call": 2}
UNEVEN, IDLE = [0.75, 0.25], [1.0, 0.0]
#: Each exchange meets each kind of fractions, and an optimizer of each kind, in some case. Where a
#: rank is idle, each step is a call of its own.
CASES = {
    "horovod-mpi": Case(clocks=True),
    "one-pass, factors, two steps a call": Case(
        "hybrid", ONE_PASS | FACTORS | TWO_STEPS, UNEVEN, "one-pass"
    ),
    "shared memory, fused, idle rank": Case("hybrid", IN_MEMORY | {"optimizer": "fused"}, IDLE),
    "momentum in shared memory": Case(knobs=IN_MEMORY | MOMENTUM, reference="momentum"),
    "leading": Case(knobs={"shard": "leading", "evaluation": "whole"}, reference="leading"),
    "synchronised": Case(knobs=SYNCHRONISED, reference="synchronised"),
    "virus-cnn": Case(knobs=NETWORKS["virus-cnn"].knobs, network="virus-cnn"),
    "tal1-cnn alone": Case("single", network="tal1-cnn"),
}  # fmt: skip
#: Cases that meet again what the others show, or train larger networks.
SWEPT = {
    "by ranks, in parts": Case(knobs={"weighting": "ranks", "accumulation": 3}),
    "factors, idle rank": Case("hybrid", FACTORS, IDLE),
    "one-pass in shared memory, rows": Case(
        knobs=ONE_PASS | IN_MEMORY | ROWS_OF_EMBEDDING, reference="one-pass"
    ),
    "adamw in shared memory, two steps a call": Case(
        "hybrid", IN_MEMORY | TWO_STEPS | {"optimizer": "adamw"}, UNEVEN, "adamw"
    ),
    "synchronised, two steps a call": Case(
        knobs=SYNCHRONISED | TWO_STEPS, reference="synchronised"
    ),
    "synchronised, idle rank": Case("hybrid", SYNCHRONISED, IDLE, "synchronised"),
    "single, two steps a call": Case("single", TWO_STEPS | {"accumulation": 2}),
    "synchronised mirrored": Case("mirrored", SYNCHRONISED, reference="synchronised"),
    "one-pass single": Case("single", ONE_PASS, reference="one-pass"),
    "mlp alone": Case("single", network="mlp"),
    "mnist-mlp": Case(network="mnist-mlp"),
    "resnet34 alone": Case("single", NETWORKS["resnet34"].knobs, network="resnet34"),
    "cifar-cnn alone": Case("single", network="cifar-cnn"),
    "mirrored, rows": Case("mirrored", ROWS_OF_EMBEDDING),
    "caption-lstm": Case(knobs=FACTORS, network="caption-lstm", clocks=True),
}
#: Gradients are rounded on their way: it trains alike, and not the same.
ROUNDED = {"rounded": Case(knobs={"compression": "fp16"})}
#: It goes on after a checkpoint of the first epoch.
RESUMED = {"momentum, resumed": CASES["momentum in shared memory"]}
ALL = CASES | SWEPT | ROUNDED | RESUMED


def reference_of(case: Case) -> str:
    """Return the name of the folder of what Keras's own loop trains."""
    return case.reference if case.network == "peculiar" else case.network


def peculiar(length: int, classes: int, normalisation: type | None = None) -> tf.keras.Model:
    """Return a network with what an exchange can go wrong with.

    Two layers have one name and one shape. Kernels, a bias and the output of a layer are
    regularised. So is the kernel of one of the two wide layers, whose factors are small. Ranks
    cannot divide the rows of the other one evenly. A step reads so few rows of the embedding that
    gathering them is fewer bytes than a sum. With `normalisation` two layers of that class
    normalise pictures and vectors.
    """

    def within(name: str) -> tf.keras.Model:
        same = layers.Dense(16, "tanh", name="same", kernel_regularizer=regularizers.L2(0.02))
        return tf.keras.Sequential([layers.Input((16,)), same], name=name)

    return tf.keras.Sequential(
        [
            layers.Input((length,), dtype="uint8"),
            layers.Embedding(600, 3),
            *([layers.Reshape((5, 5, 3)), normalisation(momentum=0.8)] if normalisation else []),
            layers.Flatten(),
            layers.Dense(1601, "relu", bias_regularizer=regularizers.L2(0.3)),
            layers.Dense(96, "relu", kernel_regularizer=regularizers.L2(0.01)),
            layers.Dense(16, "tanh", activity_regularizer=regularizers.L2(0.1)),
            *([normalisation(momentum=0.8)] if normalisation else []),
            within("one"),
            within("other"),
            layers.Dense(classes, "softmax"),
        ]
    )


PECULIAR = SimpleNamespace(
    build=lambda specs, outputs, settings, knobs: peculiar(
        *specs[0].shape, *outputs, NORMALISATIONS.get(knobs.get("batch_norm"))
    ),
    optimizer=lambda settings, rate, knobs: OPTIMIZERS[knobs["optimizer"]](),
    row_losses=lambda targets, outputs, settings: tf.keras.losses.sparse_categorical_crossentropy(
        targets, outputs
    ),
)


def add_peculiar() -> None:
    """Let this process train the peculiar network too, which reads the knobs as they are."""
    knobs_of, scores_of = train.model_knobs, train.scores_module
    train.workload = lambda name, *more: PECULIAR if name == "peculiar" else workload(name, *more)
    train.model_knobs = lambda knobs, name: knobs if name == "peculiar" else knobs_of(knobs, name)
    train.scores_module = lambda name: None if name == "peculiar" else scores_of(name)


def write_data(network: Network, folder: Path) -> None:
    """Write rows at random as a split."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    sides = {"train": network.rows, "test": TEST_ROWS}
    write_split(
        folder,
        {side: draw(network, rows, random) for side, rows in sides.items()},
        kind=DEFAULT_KIND,
        name="few",
        seed=0,
        provenance="simulated",
        classes=network.classes and [f"c{number}" for number in range(network.classes)],
        below={spec.name: spec.below for spec in network.inputs if spec.below},
    )


def draw(network: Network, rows: int, random: np.random.Generator) -> Side:
    """Return rows: captions of 1 to 5 words with their next words, or classes."""
    arrays = {
        spec.name: random.integers(spec.below, size=(rows, *spec.shape)).astype(spec.dtype)
        if spec.below
        else random.normal(size=(rows, *spec.shape)).astype(spec.dtype)
        for spec in network.inputs
    }
    if network.classes:
        return Side(arrays, random.integers(network.classes, size=rows))
    _, words = network.inputs
    ends = random.integers(1, words.shape[1], (rows, words.shape[0], 1))
    at = np.arange(words.shape[1])
    numbers = random.integers(END + 2, words.below, (rows, *words.shape))
    targets = np.where(at < ends, numbers, np.where(at == ends, END, 0)).astype(words.dtype)
    arrays["words"] = np.where(at <= ends, np.roll(targets, 1, axis=-1), 0).astype(words.dtype)
    arrays["words"][..., 0] = START
    return Side(arrays, targets)


def settings_of(name: str) -> dict:
    return (WORKLOADS[name].setting_defaults if name in WORKLOADS else {}) | NETWORKS[name].settings


def plan_of(case: Case, data: Path, epochs: range = range(1, EPOCHS + 1)) -> dict:
    """Return what training reads of the plan of a run (`escala.record.plan`)."""
    network = NETWORKS[case.network]
    checkpoints = 1 if "momentum" in case.knobs.values() else None
    common = {"validate": False, "save_model": True, "tensorboard": False}
    return {
        "strategy": case.strategy,
        "workload": case.network,
        "training": common
        | {"epochs": epochs[-1], "checkpoint_epochs": checkpoints}
        | settings_of(case.network),
        "knobs": KNOBS | {"threads": {"intra_op": 1, "inter_op": 1}} | dict(case.knobs),
        "data": str(data / case.network),
        "train_rows": network.rows,
        "validated_on": "test",
        "max_steps": None,
        "instrument": "clocks" if case.clocks else None,
        "probe_settings": {} if case.clocks else None,
        "epochs": epochs[-1],
        "global_batch": BATCH,
        "step_rows": BATCH,
        "learning_rate": network.rate,
        "seed": SEED,
        "weighting": case.knobs.get("weighting", "rows"),
        "digest": "",
        "resume_after": epochs[0] - 1,
    }


def place_of(strategy: str, process: int) -> Place:
    """Return the place of a process among the ranks of a strategy, all on one node."""
    processes, process = (1, 0) if strategy in ALONE else (2, process)
    return Place(
        process=process, processes=processes, node=0, nodes=1, local=process,
        ranks=[0, 1] if strategy == "mirrored" else [process],
        processes_per_node=processes, host="localhost", cores=[], addresses=[], extra_addresses=[],
    )  # fmt: skip


def ranks_by(strategy: str, knobs: Mapping[str, object], at: Place | None) -> Any:
    """Return a process among those of a run (`escala.engines.tensorflow.ranks`), not started."""
    if at:
        os.environ.update(STRATEGIES[strategy].process_variables(at, ""))
    return engines.ranks_of(strategy)(knobs, at)


def train_case(plan: dict, ranks: Any, at: Place, folder: Path) -> None:
    """Train one process's part of a run in a folder, which receives what a run's folder does.

    Ranks that were started for an earlier run get this one's knobs and place.
    """
    ranks.knobs, ranks.place = plan["knobs"], at
    plan["ranks"] = 1 if plan["strategy"] == "single" else 2
    into = folder / "ranks"
    into.mkdir(parents=True, exist_ok=True)
    write_json(into / "plan.json", plan)
    measured = train.train(plan, TensorFlow(plan, ranks), into, probe_of_plan(plan, into))
    write_json(into / f"rank{at.process}.json", measured)


def stated(fractions: list[float], process: int, engine, data, *_) -> np.ndarray:
    """Return stated fractions, after a step of rank 0 alone, in place of fractions by speed.

    If ranks exchanged anything while they measure their speed, rank 0 would wait for ever.
    """
    if process == 0:
        engine.step_alone(gather(data, np.arange(2), 2.0))
    return np.array(fractions)


def train_by_keras(case: Case, data: Path, folder: Path) -> None:
    """Train a network by Keras's own loop, in the order of the rows in a run.

    The folder receives the losses of the steps, that of the test rows, and the weights before and
    after; where the optimizer has momentum, all variables.
    """
    network, arrays = NETWORKS[case.network], reader(data / case.network)
    outputs, first = output_shape(arrays.description), BATCH
    tf.keras.utils.set_random_seed(SEED)
    if case.network == "peculiar":
        first, normalisation, optimizer = REFERENCES[case.reference]
        model, selected = peculiar(25, *outputs, normalisation), OPTIMIZERS[optimizer]()
    else:
        model = workload(case.network).build(
            arrays.inputs, outputs, settings_of(case.network), network.knobs
        )
        selected = network.optimizer(network.rate)
    # To compile six steps takes ten times as long as to compute them.
    model.compile(selected, network.loss, run_eagerly=True)
    folder.mkdir(parents=True)
    np.savez(folder / FIRST, *model.get_weights())
    losses = []
    for epoch in range(1, EPOCHS + 1):
        for (rows,) in Shards(SEED, network.rows, BATCH, [1.0]).epoch_batches(epoch):
            inputs, targets = arrays.gather("train", rows[: len(rows) * first // BATCH])
            losses.append(model.train_on_batch(as_model_input(inputs), targets, reset_metrics=True))
    inputs, targets = arrays.gather("test", slice(None))
    test_loss = model.evaluate(as_model_input(inputs), targets, verbose=0)
    write_json(folder / "losses.json", {"steps": losses, "test": test_loss})
    np.savez(folder / WEIGHTS, *model.get_weights())
    np.savez(
        folder / "variables.npz", *(v.numpy() for v in (*model.variables, *selected.variables))
    )


def start(folder: Path, names: Iterable[str]) -> None:
    """Let two ranks of this machine train cases in a folder, which both have to end well."""
    names = sorted(names, key=lambda name: ALL[name].strategy in ALONE)
    for network in {ALL[name].network for name in names} | {"peculiar"}:
        write_data(NETWORKS[network], folder / "data" / network)
    strategy, layout = STRATEGIES["horovod-mpi"], Layout.parse("1x2")
    knobs = KNOBS | {"threads": {"intra_op": 1}}
    nodes = launch.survey(layout, strategy, None, "auto")
    environment = launch.environment(strategy.name, knobs, nodes)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    at = places(layout, strategy, knobs, nodes.nodes)
    command = [sys.executable, __file__, str(folder), *names]
    with launch.command_line(nodes, strategy, at, command) as (whole, added):
        done = subprocess.run(
            whole, env=environment | added, capture_output=True, text=True, timeout=540
        )
    assert done.returncode == 0, done.stdout + done.stderr


def ranks_of(folder: Path, processes: int) -> list[dict]:
    """Return the measurements of the processes that trained in a folder, all of them."""
    files = sorted((folder / "ranks").glob("rank?.json"))
    assert len(files) == processes
    return list(map(read_json, files))


def main(folder: Path, names: list[str]) -> None:
    data = folder / "data"
    set_threads({"intra_op": 1, "inter_op": 1})
    started = {"mirrored": ranks_by("mirrored", KNOBS, place_of("mirrored", 0))}
    started["mirrored"].start()
    started["horovod-mpi"] = ranks_by("horovod-mpi", KNOBS, None)
    (process,), _ = started["horovod-mpi"].start()
    add_peculiar()
    warm_up = train.warm_up
    for name in names:
        case = ALL[name]
        if ALONE.get(case.strategy, process) != process:
            continue
        at = place_of(case.strategy, process)
        ranks = started.get(case.strategy) or ranks_by(case.strategy, case.knobs, None)
        if case.strategy not in started:
            ranks.start()
        warm: list[list[float]] = []

        def warmed(engine, data, batch, fractions, rows, warm=warm) -> None:
            warm.append(list(fractions))
            warm_up(engine, data, batch, fractions, rows)

        train.fractions_by_speed = partial(stated, case.fractions, process)
        train.warm_up = warmed
        whole = range(1, EPOCHS + 1)
        for epochs in [range(e, e + 1) for e in whole] if name in RESUMED else [whole]:
            train_case(plan_of(case, data, epochs), ranks, at, folder / name)
        write_json(folder / name / WARM.format(at.process), warm)
    references = {reference_of(ALL[name]): ALL[name] for name in names} | {"plain": Case()}
    for number, (name, case) in enumerate(references.items()):
        if number % 2 == process:
            train_by_keras(case, data, folder / "keras" / name)
    if process == 0:
        refused = plan_of(Case("single", SYNCHRONISED | {"accumulation": 2}), data)
        single = ranks_by("single", refused["knobs"], place_of("single", 0))
        try:
            train_case(refused, single, place_of("single", 0), folder / "not")
        except Unavailable as error:
            (folder / REFUSED).write_text(str(error))
    started["horovod-mpi"].stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
