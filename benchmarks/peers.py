"""Compare a step of Escala with PyTorch's DistributedDataParallel and with Keras's own `fit`.

    python -m venv /path/torch && /path/torch/bin/pip install torch==2.13.0 numpy==1.26.4
    python -m benchmarks.peers --torch /path/torch/bin/python

All programs train the virus CNN on the same simulated rows, from the same weights, with the same
rows in every step and one core for each process: as one process, and as two on one node. In each
round every program runs once, in an order that turns round. Prints the milliseconds of a step and
their ratio to Escala's with as many processes, the median over the rounds with its 95 % interval,
and the mean loss of the last epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.common import interval, turns
from escala.data import reader
from escala.data.genomes import arrays
from escala.data.genomes.acquire import acquire
from escala.data.genomes.prepare.fasta import encode_classes
from escala.experiment.matrix import Experiment
from escala.record.run import measure

ROOT = Path(__file__).resolve().parent.parent
CLASSES = ["COVID", "DENGUE", "EBOLA", "MERS", "SARS"]
#: Genomes of a class. Seven tenths are 1792 training rows: 28 steps of 64, or 7 of 256.
GENOMES = 512
SPLIT_SEED, SEED, RATE = 4, 0, 0.001
#: Seconds that a program may take.
LIMIT = 1200
Measured = tuple[float, float]


def experiment(arguments: argparse.Namespace) -> Experiment:
    """Return the experiment of Escala's own runs: one process, and two under Horovod and MPI."""
    knobs = {"convolution": arguments.convolution, "optimizer": arguments.optimizer}
    settings = {
        "experiment": "peers",
        "title": "Escala and its peers",
        "repeats": 1,
        "datasets": {
            "peers": {
                "source": {
                    "type": "simulated",
                    "seed": 1,
                    "difficulty": 0.2,
                    "records": dict.fromkeys(CLASSES, GENOMES),
                },
                "classes": CLASSES,
                "length": arguments.length,
                "deduplicate": "none",
                "split": {"test_fraction": 0.3, "seeds": [SPLIT_SEED]},
                "oversample": {"method": "none"},
            }
        },
        "workloads": {
            "virus-cnn": {
                "epochs": arguments.epochs,
                "batch": {"rows": arguments.batch, "per": "global"},
                "learning_rate": {"value": RATE, "reference_batch": arguments.batch},
                "seed": SEED,
                "save_model": False,
            }
        },
        "variants": {"tuned": {"cores_per_process": 1} | knobs},
        "configurations": [
            {"strategy": "single", "layouts": ["1x1"]},
            {"strategy": "horovod-mpi", "layouts": ["1x2"]},
        ],
    }
    return Experiment(settings, Path(__file__).name)


def prepare(settings: dict, folder: Path) -> Path:
    """Simulate the genomes and write the split, and its training rows as codes and targets."""
    dataset, split = settings["datasets"]["peers"], folder / "split"
    acquire(dataset["source"], CLASSES, folder / "sequences", folder / "lock.tsv")
    encode_classes(folder / "sequences", CLASSES, dataset["length"], "none", folder)
    preparation = Experiment(settings, "").preparation("peers")
    inputs = {"codes": folder / "codes.npy"}
    arrays.prepare("peers", preparation, SPLIT_SEED, inputs, split)
    data = reader(split)
    [codes], targets = data.gather("train", np.arange(data.rows("train")))
    np.save(folder / "codes.npy", codes)
    np.save(folder / "targets.npy", targets)
    return split


def write_weights(length: int, file: Path) -> None:
    """Write the weights with which Escala's first process begins, in Keras's order."""
    code = (
        "import sys, numpy as np, tensorflow as tf\n"
        "from escala.engines.tensorflow import replicas\n"
        "from escala.workloads.virus_cnn import model\n"
        f"tf.keras.utils.set_random_seed({SEED})\n"
        "replicas.use_generators()\n"
        f"np.savez(sys.argv[1], *model.network({length}, {len(CLASSES)}).get_weights())\n"
    )
    subprocess.run([sys.executable, "-c", code, file], cwd=ROOT, check=True)


def of_escala(run: object, request: dict, split: Path, folder: Path) -> Measured:
    """Train one of Escala's runs; return milliseconds a step and the last epoch's loss."""
    output = folder / run.strategy / "run.json"
    measure(request, split, output, LIMIT)
    result = json.loads(output.read_text())
    if result["status"] != "ok":
        sys.exit(f"peers: {run.strategy}: {result['reason']}")
    of_epochs = [epoch["train_seconds"] / epoch["steps"] for epoch in result["epochs"][1:]]
    return 1000 * statistics.median(of_epochs), result["epochs"][-1]["loss"]


def of_peer(
    module: str, python: str, processes: int, folder: Path, arguments: argparse.Namespace
) -> Measured:
    """Train by a peer's program; return milliseconds a step and the last epoch's loss."""
    ports = _free_ports(processes)
    cores = sorted(os.sched_getaffinity(0))
    started = []
    for rank in range(processes):
        cluster = {
            "cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]},
            "task": {"type": "worker", "index": rank},
        }
        environment = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(ports[0]),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        if processes > 1:
            environment["TF_CONFIG"] = json.dumps(cluster)
        files = {name: folder / f"{name}.npy" for name in ("codes", "targets")}
        files["weights"] = folder / "weights.npz"
        numbers = {
            "rank": rank,
            "processes": processes,
            "batch": arguments.batch,
            "epochs": arguments.epochs,
            "seed": SEED,
            "learning-rate": RATE,
        } | ({"classes": len(CLASSES)} if module == "peer_keras" else {})
        options = [f"--{name}={value}" for name, value in (files | numbers).items()]
        started.append(
            subprocess.Popen(
                ["taskset", "-c", str(cores[rank]), python, "-m", f"benchmarks.{module}", *options],
                env=environment,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    try:
        outputs = [process.communicate(timeout=LIMIT)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    if any(process.returncode for process in started):
        sys.exit(f"peers: {module} with {processes} processes failed; its message is above")
    results = [json.loads(output.splitlines()[-1]) for output in outputs]
    of_epochs = [statistics.mean(steps) for steps in results[0]["step_seconds"][1:]]
    loss = statistics.mean(result["losses"][-1] for result in results)
    return 1000 * statistics.median(of_epochs), loss


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def programs(
    arguments: argparse.Namespace, folder: Path
) -> dict[tuple[str, int], Callable[[], Measured]]:
    """Return what trains each program, by its name and number of processes."""
    ours = experiment(arguments)
    split = prepare(ours.settings, folder)
    rows = len(np.load(folder / "targets.npy"))
    if rows % arguments.batch:
        sys.exit(f"peers: --batch: {rows} rows are no whole number of batches")
    write_weights(arguments.length, folder / "weights.npz")
    all_programs = {}
    for processes, run in enumerate(ours.runs, start=1):
        request = ours.request(run)
        all_programs["Escala", processes] = lambda run=run, request=request: of_escala(
            run, request, split, folder
        )
    peers = {"Keras's fit": ("peer_keras", sys.executable)}
    if arguments.torch:
        peers["PyTorch"] = ("peer_torch", arguments.torch)
    for name, peer in peers.items():
        for processes in (1, 2):
            all_programs[name, processes] = lambda peer=peer, processes=processes: of_peer(
                *peer, processes, folder, arguments
            )
    return all_programs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", metavar="PYTHON", help="of an environment with PyTorch")
    parser.add_argument("--length", type=int, default=1000, help="letters of a row (1000)")
    parser.add_argument("--batch", type=int, default=64, help="rows of all processes (64)")
    parser.add_argument("--epochs", type=int, default=4, help="the first is not counted (4)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--convolution", default="layers", choices=["layers", "lookup-table"])
    parser.add_argument("--optimizer", default="keras", choices=["keras", "fused"])
    arguments = parser.parse_args()
    if arguments.epochs < 2 or arguments.rounds < 1:
        parser.error("--epochs must be 2 or more, and --rounds 1 or more")
    with tempfile.TemporaryDirectory() as name:
        made = programs(arguments, Path(name))
        measured: dict[tuple[str, int], list[Measured]] = {each: [] for each in made}
        for number in range(arguments.rounds):
            for each in turns(list(made), number):
                measured[each].append(made[each]())
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
    print(
        f"{arguments.length} letters, {arguments.batch} rows in a step, "
        f"{arguments.rounds} rounds of {arguments.epochs} epochs"
    )
    row = "{:14}{:>10}{:>24}{:>22}{:>12}".format
    print(row("program", "processes", "ms a step", "to Escala", "last loss"))
    for (program, processes), values in sorted(measured.items(), key=lambda item: item[0][1]):
        own = [milliseconds for milliseconds, _ in values]
        escala = [milliseconds for milliseconds, _ in measured["Escala", processes]]
        ratios = [one / other for one, other in zip(own, escala, strict=True)]
        loss = statistics.median(loss for _, loss in values)
        print(
            row(
                program,
                processes,
                interval(own, 1),
                "" if program == "Escala" else interval(ratios),
                f"{loss:.4f}",
            )
        )


if __name__ == "__main__":
    main()
