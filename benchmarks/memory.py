"""Compare the memory that a rank takes in three steps with the bound of `escala.training.memory`.

Each case trains random rows in a process of its own, by the project's own step. Its own memory is
what the kernel counts as anonymous (man 5 proc, `RssAnon`), sampled every millisecond; pages of
libraries and mapped arrays do not count. Prints a line for each case: the rows of a rank, the bytes
before the model is built, the largest bytes, the bound, and the bound as a fraction of the largest.

    python -m benchmarks.memory
    mpirun -np 2 python -m benchmarks.memory --case virus-cnn-1000 --strategy horovod-mpi
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

STEPS, MIB = 3, 2**20
MLP = {"activation": "relu", "negative_slope": 0.01, "cost": "cross-entropy", "output": "sigmoid"}
KNOBS = {"convolution": "layers", "optimizer": "keras", "batch_norm": "local"}
#: Name -> workload, its settings, shape and dtype of a row, classes, rows.
CASES = {
    "virus-cnn-1000": ("virus-cnn", {}, (1000,), "uint8", 5, 64),
    "virus-cnn-1000-batch-1024": ("virus-cnn", {}, (1000,), "uint8", 5, 1024),
    "virus-cnn-6000": ("virus-cnn", {}, (6000,), "uint8", 5, 64),
    "mlp": ("mlp", MLP | {"layers": [64]}, (30,), "float32", 2, 64),
    "mlp-wide": ("mlp", MLP | {"layers": [4096] * 4}, (4096,), "float32", 10, 64),
    "cifar-cnn": ("cifar-cnn", {"dropout": 0.25}, (32, 32, 3), "uint8", 10, 256),
    "resnet10-small": ("resnet34", {"depth": 10, "width": 8}, (37, 50, 1), "float16", 9, 128),
    "resnet34": ("resnet34", {"depth": 34, "width": 64}, (148, 197, 1), "float16", 9, 128),
    "tal1-cnn": ("tal1-cnn", {"filters": 16, "width": 15}, (500, 4), "uint8", 2, 128),
    "tal1-cnn-batch-1024": ("tal1-cnn", {"filters": 16, "width": 15}, (500, 4), "uint8", 2, 1024),
}


class Largest:
    """The largest anonymous memory of this process while it is watched, in bytes."""

    def __init__(self):
        self.bytes, self._ended = anonymous(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.is_set():
            self.bytes = max(self.bytes, anonymous())
            time.sleep(0.001)

    def end(self) -> int:
        self._ended.set()
        self._thread.join()
        return self.bytes


def anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    [kibibytes] = (line.split()[1] for line in lines if line.startswith("RssAnon"))
    return int(kibibytes) * 1024


def measure(case: str, name: str) -> None:
    from escala import engines
    from escala.data.base import Spec
    from escala.engines.tensorflow import step as steps
    from escala.engines.tensorflow.footprint import footprint
    from escala.engines.tensorflow.functions import losses_of_rows
    from escala.engines.tensorflow.state import State
    from escala.runtime.spawn import process_of_environment
    from escala.strategies.base import Place
    from escala.strategies.knobs import complete
    from escala.training import memory
    from escala.workloads import workload

    selected, settings, shape, dtype, classes, rows = CASES[case]
    process = process_of_environment()
    place = Place(process, 1, [process], 0, 1, process, 1, "", [], [], [])
    threads = {"threads": {"intra_op": 1, "inter_op": 1}}
    engine = engines.joined({"strategy": name, "knobs": complete({}, selected) | threads}, place)
    _, ranks = engine.start()
    strategy = engine.group
    before = anonymous()
    largest = Largest()
    work = workload(selected)
    model = work.build([Spec("rows", shape, dtype)], (classes,), settings, KNOBS)
    optimizer = work.optimizer(settings, 0.001, KNOBS)
    state = State(model, optimizer, [], strategy)

    class Data:
        inputs, targets = (Spec("rows", shape, dtype),), Spec("labels", (), "int64")

    row_losses = losses_of_rows(work, settings)
    compute = steps.computing(
        model, row_losses, steps.most_probable_is_right, {}, [], strategy.summed
    )
    step = steps.train_step(state, strategy, Data, compute, strategy.exchange)
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        given = random.integers(0, 2, (rows, *shape)).astype(dtype)
        labels = random.integers(0, classes, rows)
        step([(given, labels, np.ones(rows, np.float32), np.float32(rows * ranks))])
    needed = footprint(model, optimizer)
    bound = memory.node_bytes(needed, [rows], 1, "tensorflow")
    found = largest.end()
    parts = (needed.variables, needed.optimizer, needed.gradient, rows * needed.row)
    print(
        f"{case:28} {name:12} {rows:5} rows  before {before / MIB:7.0f}  largest "
        f"{found / MIB:7.0f}  bound {bound / MIB:7.0f} MiB  {bound / found:.2f}  of which "
        + " + ".join(f"{part / MIB:.0f}" for part in parts),
        flush=True,
    )
    strategy.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--strategy", default="single")
    arguments = parser.parse_args()
    if arguments.case:
        measure(arguments.case, arguments.strategy)
        return
    for case in CASES:
        command = [sys.executable, "-m", "benchmarks.memory", "--case", case]
        command += ["--strategy", arguments.strategy]
        subprocess.run(command, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}, check=False)


if __name__ == "__main__":
    main()
