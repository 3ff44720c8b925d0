"""Made-up experiments: the files that a finished sweep leaves, without training anything."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from escala.core.engines import ENGINES
from escala.core.files import read_json
from escala.experiment import Rung
from escala.probes import PROBES
from escala.probes.clocks import COLUMNS
from escala.probes.resources import Resources
from escala.record.collect import evaluate
from escala.record.plan import SHARED_PACKAGES
from escala.record.schema import FORMAT, validate_run
from tests.conftest import KNOBS

VERSIONS = ("python", *ENGINES["tensorflow"].distributions, *SHARED_PACKAGES)

CLASSES = ["COVID", "DENGUE", "EBOLA", "MERS", "SARS"]
SUPPORT = [270, 210, 75, 75, 75]
LABELS = np.repeat(np.arange(5), SUPPORT)
ARRAYS = ["train.npy", "train_labels.npy", "test.npy", "test_labels.npy"]
SESSION = "20260101T000000Z-1"
#: Parts of a run that a fit does not have.
STEP_TIMES = ("build", "first_step", "first_prediction", "broadcast", "checkpoint", "averaging")
MACHINE = {
    "cpu": "Example CPU @ 2.00GHz", "cores_available": 2, "cores_total": 2,
    "memory_bytes": 8 * 2**30,
}  # fmt: skip


def write_json(path: Path, content: object) -> None:
    """Write a file of a made-up run; nobody waits for it to reach the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")


def timeline_text(steps: int = 5, closed: bool = True) -> str:
    """Return a timeline in Horovod's layout: one broadcast, and `steps` fused allreduces.

    Every allreduce joins tensors 2 (4000 bytes) and 3 (16 bytes) for 6 ms, of which step n waits
    n ms for rank 1.
    """
    events: list[dict] = []

    def add(ph: str, ts: int, pid: int, name: str | None = None, **more: object) -> None:
        events.append({"ph": ph, "ts": ts, "pid": pid} | ({"name": name} if name else {}) | more)

    names = ("HorovodBroadcast_kernel_0", "DistributedGradientTape_Allreduce/dense/kernel",
             "DistributedGradientTape_Allreduce/dense/bias")  # fmt: skip
    told = [{"start_time_since_epoch_in_micros": 1}, *({"name": name} for name in names)]
    for pid, args in enumerate(told):
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": args})
        events.append({"name": "process_sort_index", "ph": "M", "pid": pid,
                       "args": {"sort_index": pid}})  # fmt: skip
    events += [{"ph": "i", "name": "CYCLE_START", "ts": ts, "s": "g"} for ts in (100, 900)]
    add("B", 1000, 1, "NEGOTIATE_BROADCAST")
    add("X", 1000, 1, "0", dur=0)
    add("X", 1900, 1, "1", dur=0)
    add("E", 2000, 1)
    add("B", 2000, 1, "BROADCAST")
    add("B", 2100, 1, "MPI_BCAST")
    add("E", 2900, 1)
    add("E", 3000, 1, args={"dtype": "float32", "shape": "[250, 4]"})
    phases = [
        ("MEMCPY_IN_FUSION_BUFFER", 0, 1000),
        ("MPI_ALLREDUCE", 1000, 3000),
        ("MEMCPY_OUT_FUSION_BUFFER", 3000, 3500),
    ]
    for step in range(1, steps + 1):
        start, begin = 10_000 * step, 11_000 * step
        for pid in (2, 3):
            add("B", start, pid, "NEGOTIATE_ALLREDUCE")
            add("X", start, pid, "0", dur=0)
            add("X", begin, pid, "1", dur=0)
            add("E", begin, pid)
        for pid in (2, 3):
            add("B", begin, pid, "ALLREDUCE")
        for name, first, last in phases:
            for pid in (2, 3):
                add("B", begin + first, pid, name)
            for pid in (2, 3):
                add("E", begin + last, pid)
        for pid, shape in ((2, "[250, 4]"), (3, "[4]")):
            add("E", begin + 3600 + pid, pid, args={"dtype": "float32", "shape": shape})
    return "[\n" + ",\n".join(map(json.dumps, events)) + ("]" if closed else "")


@dataclass
class FakeExperiment:
    """Files of an experiment under `root`, as the rules of the workflow would leave them."""

    root: Path
    name: str = "demo"
    dataset: str = "demo-1000"
    provenance: str = "simulated"
    leaky: bool = False
    seeds: tuple[int, ...] = (4,)
    split: dict = field(default_factory=lambda: {"by": "random"})
    not_separable: list[str] = field(default_factory=list)
    #: Every tenth test row is unlike all that was trained on.
    similarity: np.ndarray = field(
        default_factory=lambda: np.where(np.arange(len(LABELS)) % 10, 0.99, 0.5)
    )
    runs: list[Path] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.root / "results" / self.name

    def add_dataset(self) -> FakeExperiment:
        data = self.folder / "data" / self.dataset
        data.mkdir(parents=True, exist_ok=True)
        records = [900, 700, 250, 250, 250]
        for seed in self.seeds:
            train = [n - t for n, t in zip(records, SUPPORT, strict=True)]
            counts = {
                c: {"records": n, "kept": n, "train": r, "balanced": max(train), "test": t}
                for c, n, r, t in zip(CLASSES, records, train, SUPPORT, strict=True)
            }
            write_json(
                data / f"split{seed}" / "dataset.json",
                {
                    "format": 1, "dataset": self.dataset, "provenance": self.provenance,
                    "classes": CLASSES, "length": 1000, "leaky": self.leaky, "split_seed": seed,
                    "split": self.split,
                    "not_separable": self.not_separable,
                    "oversample": {"method": "smoten"}, "counts": counts, "sha256": {},
                },
            )  # fmt: skip
            folder = data / f"split{seed}"
            write_json(folder / "leakage.json", {"similarity": 0.95, "fraction": 0.9})
            np.save(folder / "test_labels.npy", LABELS)
            np.save(folder / "test_genomes.npy", np.arange(len(LABELS), dtype=np.int32) // 2)
            np.save(folder / "test_similarity.npy", np.array(self.similarity, np.float32))
        return self

    @property
    def dataset_files(self) -> list[Path]:
        return sorted((self.folder / "data").glob("*/split*/dataset.json"))

    def add(
        self,
        strategy: str,
        layout: str,
        epoch_seconds: float,
        repeats: int = 3,
        failed: dict[int, tuple[str, str]] | None = None,
        variant: str = "tuned",
        session: str = SESSION,
        older: dict[str, float] | None = None,
        accuracy: float = 0.99,
        workload: str = "virus-cnn",
        untested: str | None = None,
        rows: int | None = None,
        cores: int = 1,
    ) -> FakeExperiment:
        """Add the runs of a configuration; `failed` gives status and reason by repeat.

        `older` gives the seconds per epoch of measurements in older sessions, `untested` a class
        without test rows, `rows` the global batch, 32 for each rank unless it is given, and `cores`
        those of a process. A workload other than `virus-cnn` is a fit.
        """
        for repeat in range(1, repeats + 1):
            status, reason = (failed or {}).get(repeat, ("ok", None))
            names = (strategy, layout, variant)
            folder = self.folder / "runs" / self.dataset / workload / "/".join(names) / "native"
            path = folder / f"rep{repeat}" / "run.json"
            run = self._run(*names, repeat, session, epoch_seconds, status, reason, accuracy)
            run["knobs"]["cores_per_process"] = cores
            run["training"]["global_batch"] = rows or run["training"]["global_batch"]
            if workload != "virus-cnn":
                as_fit(run, workload)
            if untested and run["evaluation"]:
                run["evaluation"] = without_rows(run["evaluation"], untested)
            for name, seconds in (older or {}).items():
                old = self._run(*names, repeat, name, seconds, "ok", None, accuracy)
                write_json(path.parent / "sessions" / f"{name}.json", old)
            write_json(path.parent / "sessions" / f"{session}.json", run)
            write_json(path, run)
            if run["evaluation"]:
                np.save(path.with_name("predictions.npy"), predictions(run["evaluation"]))
            self.runs.append(path)
        return self

    def add_timeline(self, strategy: str, layout: str, status: str = "ok") -> Path:
        """Add the record of a run with a timeline, which has none of its files."""
        folder = self.folder / "runs" / self.dataset / "virus-cnn" / strategy / layout / "tuned"
        reason = None if status == "ok" else "rank 1 was ended by signal 9"
        run = self._run(strategy, layout, "tuned", None, SESSION, 3.0, status, reason, 0.9)
        path = folder / "native" / "timeline" / "run.json"
        write_json(path, run | {"instrument": "timeline"})
        return path

    def _run(
        self, strategy, layout, variant, repeat, session, epoch_seconds, status, reason, accuracy
    ) -> dict:
        seed = zlib.crc32(f"{strategy}{layout}{variant}{repeat}{session}".encode())
        random = np.random.default_rng(seed)
        split = self.seeds[((repeat or 1) - 1) % len(self.seeds)]
        ranks = int(layout.split("x")[0]) * int(layout.split("x")[1])
        rows = 3150
        epochs = [
            {
                "epoch": n, "steps": rows // (32 * ranks) + 1, "rows": rows,
                "train_seconds": (seconds := epoch_seconds * random.uniform(0.95, 1.05)),
                "epoch_wall_seconds": seconds + 0.7, "validation_seconds": 0.65,
                "loss": 1.2 / n**2, "accuracy": 1 - 0.35 / n**2 * random.uniform(0.8, 1.2),
                "validation_accuracy": 1 - 0.2 / n**2 * random.uniform(0.8, 1.2),
            }
            for n in range(1, 4)
        ]  # fmt: skip
        ok, train = status == "ok", sum(e["train_seconds"] for e in epochs)
        step = epoch_seconds / epochs[0]["steps"]
        return {
            "format": FORMAT, "status": status, "reason": reason, "experiment": self.name,
            "dataset": self.dataset, "workload": "virus-cnn", "strategy": strategy,
            "layout": layout, "variant": variant, "network": "native", "repeat": repeat,
            "series": None, "instrument": None, "session": session,
            "started": "2026-01-01T00:00:00+00:00",
            "wall_seconds": train + 14.0,
            "ranks": {
                "asked": ranks, "obtained": ranks if ok else None, "oversubscribed": ranks > 2,
                "launcher": "mpirun", "hosts": ["example"], "machines": [MACHINE],
                "interface": "lo",
                "one_clock": True if ok else None,
                "fractions": [1 / ranks] * ranks if ok else None,
                "cores": [[r % 2] for r in range(ranks)],
                "threads": {"intra_op": 1, "inter_op": 1},
            },
            "training": {
                "global_batch": 32 * ranks, "rows_per_rank": 32,
                "learning_rate": 0.001,
                "optimizer": "RMSprop" if ok else None, "epochs_asked": 3,
                "steps_per_epoch": epochs[0]["steps"],
                "epochs_done": 3 if ok else 0, "stopped_early": False,
                "resumed_after": [], "parameters": 2067181 if ok else None,
                "train_rows": rows, "test_rows": 705,
                "validated_on": "test", "target_accuracy": 0.95,
            },
            "epochs": epochs if ok else [],
            "seconds": {
                "startup": 3.1, "loading": 0.02, "build": 0.4, "first_step": 1.9 + 0.3 * ranks,
                "first_prediction": 0.3, "broadcast": 0.1 * (ranks - 1), "train": train,
                "checkpoint": 0.0, "averaging": 0.0, "evaluation": 0.7, "save": 0.2,
            } if ok else None,
            "step_seconds": {
                "median": step, "p90": 1.2 * step, "count": 3 * epochs[0]["steps"],
                "per_rank": [{"rank": r, "median": step, "p90": 1.2 * step} for r in range(ranks)],
            } if ok else None,
            "samples_per_second": 3 * rows / train if ok else None,
            "evaluation": evaluation(random, accuracy) if ok else None,
            "weights_sha256": f"{seed:064x}" if ok else None,
            "data": {
                "provenance": self.provenance, "leaky": self.leaky, "split_seed": split,
                "sha256": dict.fromkeys(ARRAYS, f"{split:064x}"),
            },
            "machine": MACHINE | {"kernel": "6.1.0", "hostname": "example"},
            "versions": dict.fromkeys(VERSIONS, "1.0"),
            "source_sha256": "0" * 64, "link": None,
            **{name: None for name, probe in PROBES.items() if probe.result},
            "knobs": KNOBS | {"threads": {"intra_op": 1, "inter_op": 1}},
            "seeds": {"weights": 0, "shuffle": 0},
        }  # fmt: skip


def as_fit(run: dict, workload: str) -> None:
    """Make a run one of a workload that is fitted at once."""
    run |= {"workload": workload, "seeds": {"weights": None, "shuffle": None}}
    run["training"] |= {
        "learning_rate": None, "epochs_asked": 1, "steps_per_epoch": None,
        "validated_on": None, "target_accuracy": None,
        "global_batch": run["training"]["train_rows"],
    }  # fmt: skip
    if run["status"] == "ok":
        rows = run["training"]["train_rows"]
        run["epochs"] = [run["epochs"][0] | {"steps": 1, "rows": rows, "validation_accuracy": None}]
        run["training"] |= {"optimizer": "lbfgs", "epochs_done": 1}
        run["seconds"] |= {**dict.fromkeys(STEP_TIMES), "train": run["epochs"][0]["train_seconds"]}


def as_program(
    run: dict,
    known_by: str = "hook",
    named: Sequence[str] = ("epochs", "rows_of_rank", "seed"),
    scores: dict[str, float] | None = None,
    rows: bool = True,
) -> None:
    """Make a run one of a program that reports these scores, and maybe the rows of its steps."""
    run |= {
        "workload": "train", "evaluation": None, "weights_sha256": None,
        "versions": {"python": "3.12", "torch": "2.5", "snakemake": "9"},
        "program": {
            "command": ["python", "train.py", *(f"{{{name}}}" for name in named)],
            "files": {"train.py": "a" * 64}, "named": sorted(named), "known_by": None,
            "first_epoch_seconds": None, "whole_seconds": None, "notes": [],
        },
    }  # fmt: skip
    run["training"] |= {
        "learning_rate": None, "optimizer": None, "steps_per_epoch": None,
        "parameters": None, "train_rows": None, "test_rows": None, "validated_on": None,
        "target_accuracy": None,
    }  # fmt: skip
    if not {"rows", "rows_of_rank"} & set(named):
        run["training"] |= {"global_batch": None, "rows_per_rank": None}
    if "epochs" not in named:
        run["training"]["epochs_asked"] = None
    if "seed" not in named:
        run["seeds"] = {"weights": None, "shuffle": None}
    run["data"] |= {"provenance": "files", "sha256": {}}
    if run["status"] != "ok":
        return
    whole = known_by == "whole run"
    untold = {
        "validation_seconds": None, "validation_accuracy": None, "loss": None, "accuracy": None,
        **({} if rows else {"rows": None, "steps": None}),
    }  # fmt: skip
    run["epochs"] = [epoch | untold for epoch in run["epochs"][: 1 if whole else None]]
    train = sum(epoch["train_seconds"] for epoch in run["epochs"])
    run["training"]["epochs_done"] = len(run["epochs"])
    run["seconds"] |= {
        **dict.fromkeys((*STEP_TIMES[:-1], "loading", "evaluation", "save")),
        "startup": 1.0 if known_by == "hook" else None, "train": train,
    }  # fmt: skip
    del run["seconds"]["averaging"]
    run["program"] |= {
        "known_by": known_by,
        "first_epoch_seconds": None if whole else 4.0,
        "whole_seconds": train if whole else train + 7.0,
    }
    if scores:
        run["evaluation"] = {"rows": None, "scores": scores}
    if not rows:
        run |= {"step_seconds": None, "samples_per_second": None}


def program(root: Path, repeats: int = 7, failed: Sequence[int] = (), **told) -> FakeExperiment:
    """Return one process and two of a program; the failed repeats ended by the time limit."""
    experiment = FakeExperiment(root, dataset="files")
    ended = dict.fromkeys(failed, ("timeout", "no end after 60 s"))
    experiment.add("single", "1x1", 5.0, repeats, ended, rows=64)
    experiment.add("torch-ddp", "1x2", 3.0, repeats, ended, rows=64)
    for path in experiment.runs:
        run = read_json(path)
        as_program(run, **told)
        validate_run(run)
        changed([path], **run)
    return experiment


def with_classes(experiment: FakeExperiment, classes: int) -> FakeExperiment:
    """Return an experiment whose runs tested so many classes, of three rows each."""
    labels = np.arange(3 * classes) % classes
    found = evaluate(labels, np.where(labels, labels, 1), [f"c{n}" for n in range(classes)])
    for path in experiment.runs:
        run = read_json(path)
        if run["evaluation"]:
            run["evaluation"] = found
            validate_run(run)
            write_json(path, run)
    return experiment


def without_rows(scores: dict, name: str) -> dict:
    """Return scores as they are where a class has no test rows."""
    matrix = np.array(scores["confusion_matrix"])
    matrix[CLASSES.index(name)] = 0
    labels, predictions = (
        np.repeat(axis.ravel(), matrix.ravel()) for axis in np.indices(matrix.shape)
    )
    return evaluate(labels, predictions, CLASSES)


def predictions(scores: dict) -> np.ndarray:
    """Return predictions for `LABELS` with the confusion matrix of scores."""
    found = np.zeros(len(LABELS), np.int64)
    for label, row in enumerate(scores["confusion_matrix"]):
        if sum(row):
            found[label == LABELS] = np.repeat(np.arange(5), row)
    return found


def evaluation(random: np.random.Generator, accuracy: float) -> dict:
    """Return the scores of made-up predictions, `accuracy` of them right."""
    wrong = random.uniform(size=len(LABELS)) > accuracy
    predictions = np.where(wrong, random.integers(0, 5, len(LABELS)), LABELS)
    return json.loads(_scored(predictions.tobytes()))


@cache
def _scored(content: bytes) -> str:
    """Return the scores of predictions as JSON. Runs of one name have the same in every test."""
    return json.dumps(evaluate(LABELS, np.frombuffer(content, int), CLASSES))


def three_configurations(root: Path, repeats: int = 3, **keywords) -> FakeExperiment:
    """Return the default experiment: one process, two over MPI, two over Gloo; the last failed."""
    failed = {repeats: ("failed", "rank 1 was ended by signal 9")} if repeats > 1 else None
    return (
        FakeExperiment(root, **keywords)
        .add_dataset()
        .add("single", "1x1", 5.6, repeats)
        .add("horovod-mpi", "1x2", 3.2, repeats, accuracy=0.985)
        .add("horovod-gloo", "1x2", 3.6, repeats, failed)
    )


#: The error of each run of `regression`, by its configuration.
ERRORS = {"single": (0.5, 0.4, 0.6), "horovod-mpi": (0.75, 0.5, 0.55)}


def regression(root: Path) -> FakeExperiment:
    """Return two configurations of a workload that brings a score of its own, on no classes."""
    experiment = FakeExperiment(root, leaky=True)
    experiment.add("single", "1x1", 5.0).add("horovod-mpi", "1x2", 4.0)
    errors = (error for group in ERRORS.values() for error in group)
    for path, error in zip(experiment.runs, errors, strict=True):
        scores = {"rows": len(LABELS), "scores": {"rmse": error}}
        changed([path], workload="regression", evaluation=scores)
    return experiment


#: The scores after each epoch of the runs of `with_epoch_scores`, by their configuration.
EPOCH_SCORES = {
    "single": ([0.1, 0.3, 0.2], [0.2, 0.3, 0.4]),
    "horovod-mpi": ([0.3, 0.2, 0.1], [0.1, 0.05, 0.02]),
}


def with_epoch_scores(root: Path) -> FakeExperiment:
    """Return two configurations whose workload gives a score after each epoch."""
    experiment = FakeExperiment(root).add_dataset()
    experiment.add("single", "1x1", 5.0, 2).add("horovod-mpi", "1x2", 4.0, 2)
    runs = [values for group in EPOCH_SCORES.values() for values in group]
    for path, values in zip(experiment.runs, runs, strict=True):
        epochs = zip(read_json(path)["epochs"], values, strict=True)
        scored = [epoch | {"scores": {"bleu": value}} for epoch, value in epochs]
        changed([path], epochs=scored, training={"validated_on": "validation"})
    return experiment


#: Of `fair`: one process on one core, and one with two cores as threads.
REFERENCES = [
    {"strategy": "single", "layout": "1x1", "variant": variant} for variant in ("tuned", "threads")
]


def fair(root: Path, one: float, threads: float, two: float, repeats: int = 7) -> FakeExperiment:
    """Return one process, one with two cores and two processes, by their seconds per epoch."""
    more = {"repeats": repeats, "rows": 64, "accuracy": 1.0}
    return (
        FakeExperiment(root)
        .add_dataset()
        .add("single", "1x1", one, **more)
        .add("single", "1x1", threads, variant="threads", cores=2, **more)
        .add("horovod-mpi", "1x2", two, **more)
    )


#: Of `twice`: the time of each second run of the reference, divided by that of the first.
DUPLICATE_RATIOS = (0.98, 1.01, 1.0, 1.03, 0.99, 1.02, 1.0)


def twice(root: Path, slower: float = 0.0) -> tuple[FakeExperiment, list[Path]]:
    """Return an experiment of three configurations, and the second runs of its reference.

    The runs begin a minute apart. Each takes longer than one before it by `slower`, a fraction.
    """
    experiment = FakeExperiment(root).add_dataset()
    names = ("single", "horovod-mpi", "horovod-gloo")
    for name, seconds in zip(names, (5.0, 3.0, 4.9), strict=True):
        layout = "1x1" if name == "single" else "1x2"
        experiment.add(name, layout, seconds, len(DUPLICATE_RATIOS), rows=64)
    again = []
    for repeat, ratio in enumerate(DUPLICATE_RATIOS, start=1):
        cells = [next(p for p in experiment.runs if p.match(f"{name}/*/*/*/rep{repeat}/*"))
                 for name in names]  # fmt: skip
        seconds = [5.0 + 0.01 * (repeat % 3), 3.0 + 0.02 * (repeat % 4), 4.9]
        cells.append(cells[0].parent.with_name(f"duplicate.rep{repeat}") / "run.json")
        write_json(cells[-1], read_json(cells[0]) | {"series": "duplicate"})
        seconds.append(ratio * seconds[0])
        for place, (path, each) in enumerate(zip(cells, seconds, strict=True)):
            number = (repeat - 1) * len(cells) + place
            spent = read_json(path)["seconds"] | {"train": 3 * each * (1 + slower) ** number}
            begun = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number)
            changed([path], seconds=spent, started=begun.isoformat())
            validate_run(read_json(path))
        again.append(cells[-1])
    return experiment, again


def with_fits(root: Path, repeats: int = 3, **keywords) -> FakeExperiment:
    """Return the default experiment with the workloads fitted at once alongside it."""
    return (
        three_configurations(root, repeats, **keywords)
        .add("single", "1x1", 0.4, repeats, accuracy=0.97, workload="kmer-logreg")
        .add("single", "1x1", 0.001, repeats, accuracy=0.4, workload="majority")
    )


def rewritten(paths: Iterable[Path], change: Callable[[dict], object]) -> None:
    """Change run.json files in place, and what their session folders keep of them."""
    for path in paths:
        run = read_json(path)
        change(run)
        write_json(path, run)
        write_json(path.parent / "sessions" / f"{run['session']}.json", run)


def changed(paths: Iterable[Path], **changes: object) -> None:
    """Set keys of run.json files; those of `training` are set one by one."""
    training = changes.pop("training", {})
    rewritten(paths, lambda run: run.update(**changes, training=run["training"] | training))


def sampled(root: Path) -> list[Path]:
    """Return two runs whose resources were sampled, the second of which failed."""
    experiment = three_configurations(root)
    good, bad = experiment.runs[3], experiment.runs[-1]
    schema = Resources.result["items"]["properties"]
    process = dict.fromkeys(schema) | {"samples": 4, "cpu_percent_mean": 97.5}
    processes = [process | {"rank": rank} for rank in (0, 1)]
    changed([good], instrument="resources", repeat=None, resources=processes)
    changed([bad], instrument="resources", repeat=None)
    for path in (good, bad):
        validate_run(read_json(path))
    return [good, bad]


#: Of the matches that `laddered` makes: before, after, and how their seconds are to each other.
RATIOS = {
    "way-1": ("slow", "slower", 1.25),
    "way-2": ("slower", "fast", 0.4),
    "way-ends": ("slow", "fast", 0.5),
}


def laddered(root: Path) -> tuple[FakeExperiment, list[Path], list[dict]]:
    """Return an experiment, the runs of a ladder, and its rungs.

    On each rung `before` takes 8 s an epoch in the first repeat and 4 s in the second.
    """
    experiment = three_configurations(root)
    rungs, found = [], []
    for number, (name, (before, after, ratio)) in enumerate(RATIOS.items(), start=1):
        rung = number if number < len(RATIOS) else None
        places = [("horovod-mpi", "1x2", variant, "native") for variant in (before, after)]
        change = rung and f"from {before} to {after}"
        rungs.append(vars(Rung(name, "way", rung, *places, change)))
        for repeat, seconds in ((1, 8.0), (2, 4.0)):
            for variant, took in ((before, seconds), (after, ratio * seconds)):
                run = read_json(experiment.runs[3])
                run |= {"series": name, "repeat": repeat, "variant": variant}
                for epoch in run["epochs"]:
                    epoch["epoch_wall_seconds"] = took
                path = experiment.folder / "runs" / variant / f"{name}.rep{repeat}" / "run.json"
                validate_run(run)
                write_json(path, run)
                found.append(path)
    return experiment, found, rungs


def clocks_of_rank(rank: int, steps: int = 3, begins: float = 1000.0) -> pd.DataFrame:
    """Return the clocks of a rank whose steps last 100 ms, and 20 ms more for each rank before.

    Of two tensors the second is ready at the end of 50 ms of computing, 20 ms later on rank 1. Both
    are exchanged within 25 ms after the slowest rank, and their updates take 10 ms together. A
    rank's CPU time is its step without the wait, of which it lost nothing.
    """
    late, rows = 0.02 * rank, []
    for step in range(1, steps + 1):
        start = begins + step
        moments = [
            ("gather_begins", "", 0.0),
            ("gather_ends", "", 0.002),
            ("step_begins", "", 0.003),
            ("gradient_ready", "a/kernel", 0.033 + late),
            ("gradient_ready", "b/kernel", 0.053 + late),
            ("exchanged", "a/kernel", 0.098),
            ("exchanged", "b/kernel", 0.098),
            ("updated", "a/kernel", 0.104),
            ("updated", "b/kernel", 0.108),
            ("returned", "", 0.109),
        ]
        used = {
            "gather_begins": 0.0, "entered": 0.003, "computed": 0.053 + late, "summed": 0.06,
            "returned": 0.071,
        }  # fmt: skip
        sampled = {"entered": 0.003, "computed": 0.053 + late, "summed": 0.098}
        moments += [(name, "", after) for name, after in sampled.items()]
        rows += [
            (1, step, name, tensor, start + after)
            + ((used[name], 0.0, 0.0) if name in used else (None, None, None))
            for name, tensor, after in moments
        ]
    return pd.DataFrame(rows, columns=COLUMNS)


def horovod_events(steps: int = 3, begins: float = 1000.0) -> list[dict]:
    """Return the timeline that goes with `clocks_of_rank` of two ranks.

    Tensor a goes alone, while rank 1 computes; b starts 2 ms after it is ready on both ranks, is
    copied for 1 ms, reduced for 18 ms and copied for 1 ms.
    """
    operations = {
        1: [("ALLREDUCE", 55, 60), ("MPI_ALLREDUCE", 55, 60)],
        2: [
            ("ALLREDUCE", 75, 95),
            ("MEMCPY_IN_FUSION_BUFFER", 75, 76),
            ("MPI_ALLREDUCE", 76, 94),
            ("MEMCPY_OUT_FUSION_BUFFER", 94, 95),
        ],
    }

    def event(ph: str, pid: int, milliseconds: int, **more: str) -> dict:
        return {"ph": ph, "pid": pid, "ts": 1000 * milliseconds} | more

    told = {
        0: {"start_time_since_epoch_in_micros": round(begins * 1e6)},
        1: {"name": "gradient/a/kernel"},
        2: {"name": "gradient/b/kernel"},
    }
    events = [
        {"name": "process_name", "ph": "M", "pid": n, "args": args} for n, args in told.items()
    ]
    for step in range(1, steps + 1):
        for pid, (whole, *parts) in operations.items():
            events.append(event("B", pid, 1000 * step + whole[1], name=whole[0]))
            for name, first, last in parts:
                events.append(event("B", pid, 1000 * step + first, name=name))
                events.append(event("E", pid, 1000 * step + last))
            events.append(event("E", pid, 1000 * step + whole[2]))
    return events


def clocked(root: Path) -> tuple[FakeExperiment, list[Path]]:
    """Return an experiment and the runs with clocks of three of its configurations.

    The runs are one of each: one process, two whose timeline is known, and one that failed.
    """
    experiment = three_configurations(root)
    found = []
    for strategy in ("single", "horovod-mpi", "horovod-gloo"):
        timed = [path for path in experiment.runs if f"/{strategy}/" in str(path)][-1]
        path = timed.parent.with_name("clocks.rep1") / "run.json"
        run = read_json(timed) | {"instrument": "clocks", "repeat": 1}
        if run["status"] == "ok":
            run["step_seconds"] |= {"median": 0.109}
            (path.parent / "ranks").mkdir(parents=True)
            for rank in range(1 if strategy == "single" else 2):
                clocks_of_rank(rank).to_csv(
                    path.parent / "ranks" / f"rank{rank}.clocks.csv", index=False
                )
        if strategy == "horovod-mpi":
            write_json(path.with_name("timeline.json"), horovod_events())
        validate_run(run)
        write_json(path, run)
        found.append(path)
    return experiment, found
