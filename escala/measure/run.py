"""One run from its request to `run.json`: start the ranks, watch them, collect what they found."""

from __future__ import annotations

import re
import shutil
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from escala.environment import session
from escala.errors import InputError
from escala.files import atomic, read_json, sha256_file, write_json
from escala.measure import evaluation, machine, steps, timeline
from escala.measure.schema import validate_run
from escala.parallel import children, launch
from escala.parallel.layout import Layout, assign_cores, available_cores
from escala.parallel.rank import SCRATCH
from escala.parallel.shards import epoch_order, row_moments
from escala.parallel.strategies import STRATEGIES
from escala.workloads import WORKLOADS, models

FORMAT = 2
POLL_SECONDS = 0.1
RAW_TIMELINE, TIMELINE, TRACE = "timeline.raw", "timeline.json", "trace.json"
PREDICTIONS = "predictions.npy"
MODEL_FILES = (*models.FILES.values(), models.DESCRIPTION)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: a status of the run schema and, unless it is ok, the reason."""

    status: str
    reason: str | None = None


def measure(request: dict, data: Path, output: Path, time_limit_seconds: float) -> Outcome:
    """Run what `request` asks for and write `output`, a `run.json`, whatever happens to the run.

    Parameters
    ----------
    request : the run's identity, its training settings, knobs and seeds, as the workflow's rule
        `train` puts them together.
    data : folder of the split to train on.
    output : the `run.json` to write; the folder it stands in belongs to the run. A run that ends
        ok leaves the predicted class of every test row in `predictions.npy` beside it, int64 in
        the order of `test.npy`, and its model if that is to be kept.

    Raises
    ------
    InputError : the layout does not fit this machine, or the arrays are not those their
        description tells of; nothing was started.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    folder, ranks_folder = output.parent, output.parent / "ranks"
    _clean(folder)
    ranks_folder.mkdir(parents=True)
    description = _description(data)
    plan = _plan(request, description, data)
    write_json(ranks_folder / "request.json", plan)
    result = _identity(request, plan, description, started)
    try:
        outcome = _attempt(request, plan, data, ranks_folder, result, time_limit_seconds)
    finally:
        _tidy(ranks_folder)
    if outcome.status != "ok":
        _remove(folder, PREDICTIONS, *MODEL_FILES)
    result |= {
        "status": outcome.status,
        "reason": outcome.reason,
        "wall_seconds": time.monotonic() - clock,
    }
    validate_run(result)
    write_json(folder / "sessions" / f"{result['session']}.json", result)
    write_json(output, result)
    return outcome


def _attempt(
    request: dict, plan: dict, data: Path, ranks_folder: Path, result: dict, limit: float
) -> Outcome:
    """Run the ranks and write what they measured into `result`; whatever fails is an outcome."""
    try:
        outcome = _supervise(request, plan, ranks_folder, limit)
        raw = ranks_folder / RAW_TIMELINE
        if raw.exists():
            folder = ranks_folder.parent
            timeline.write(raw, folder / TIMELINE, folder / TRACE)
        return _collect(plan, data, ranks_folder, result) if outcome.status == "ok" else outcome
    except Exception as error:
        with open(ranks_folder / "launcher.log", "a") as log:
            traceback.print_exc(file=log)
        return Outcome("failed", f"{type(error).__name__}: {error}"[:500])


def _description(data: Path) -> dict:
    """Return a split's description after checking that its arrays are those it tells of."""
    try:
        description = read_json(data / "dataset.json")
        damaged = [
            n for n, digest in description["sha256"].items() if sha256_file(data / n) != digest
        ]
    except (ValueError, KeyError, FileNotFoundError) as error:
        damaged = [str(error)]
    if damaged:
        raise InputError(data, damaged[0], "is damaged", f"remove {data} and run again")
    return description


def _plan(request: dict, description: dict, data: Path) -> dict:
    """Return what the ranks read: the request with everything derived from it worked out."""
    layout = Layout.parse(request["layout"])
    knobs = request["knobs"]
    available = available_cores()
    needed = layout.processes * knobs["cores_per_process"]
    oversubscribed = needed > len(available)
    if layout.nodes > 1 or (oversubscribed and not request["oversubscribe"]):
        raise InputError(
            "layout",
            request["layout"],
            f"needs {layout.nodes} node(s) with {needed} cores, and this machine has "
            f"{len(available)}",
            "ask for fewer processes or set oversubscribe: true",
        )
    threads = dict.fromkeys(("intra_op", "inter_op"), knobs["cores_per_process"])
    common = {
        "strategy": request["strategy"],
        "workload": request["workload"],
        "kind": WORKLOADS[request["workload"]].kind,
        "training": request["training"],
        "knobs": knobs | {"threads": threads | knobs["threads"]},
        "ranks": layout.ranks,
        "cores": assign_cores(layout.processes, knobs["cores_per_process"], available),
        "oversubscribed": oversubscribed,
        "data": str(data.resolve()),
        "classes": description["classes"],
        "train_counts": [description["counts"][c]["train"] for c in description["classes"]],
        "train_rows": sum(c["balanced"] for c in description["counts"].values()),
        "max_steps": request.get("max_steps"),
        "instrument": request["instrument"],
    }
    by_kind = {"gradient": _by_gradient, "fit": _by_fit}
    return common | by_kind[common["kind"]](common, request["repeat"] or 1)


def _by_gradient(plan: dict, repeat: int) -> dict:
    """Return what the plan of a workload trained by gradient steps holds besides."""
    training = plan["training"]
    batch, rate = training["batch"], training["learning_rate"]
    global_batch = batch["rows"] * (plan["ranks"] if batch["per"] == "rank" else 1)
    scale = global_batch / rate["reference_batch"] if rate["rule"] == "linear" else 1.0
    seed = training["seed"] + repeat - 1
    return {
        "epochs": training["epochs"],
        "global_batch": global_batch,
        "learning_rate": rate["value"] * scale,
        "seed": seed,
        "shuffle_seed": seed,
    }


def _by_fit(plan: dict, repeat: int) -> dict:
    """Return the same for a fit: one step over all rows in their order, nothing drawn at random."""
    return {
        "knobs": plan["knobs"] | {"threads": plan["knobs"]["threads"] | {"inter_op": 1}},
        "epochs": 1,
        "global_batch": plan["train_rows"],
        "learning_rate": None,
        "seed": None,
        "shuffle_seed": None,
    }


def _identity(request: dict, plan: dict, description: dict, started: datetime) -> dict:
    names = (
        "experiment",
        "dataset",
        "workload",
        "strategy",
        "layout",
        "variant",
        "network",
        "repeat",
        "instrument",
    )
    return {
        "format": FORMAT,
        **{name: request[name] for name in names},
        "session": session(),
        "started": started.isoformat(timespec="seconds"),
        "ranks": {
            "asked": plan["ranks"],
            "obtained": None,
            "oversubscribed": plan["oversubscribed"],
            "cores": plan["cores"],
            "threads": plan["knobs"]["threads"],
        },
        "training": {
            "kind": plan["kind"],
            "global_batch": plan["global_batch"],
            "rows_per_rank": -(-plan["global_batch"] // plan["ranks"]),
            "learning_rate": plan["learning_rate"],
            "optimizer": None,
            "epochs_asked": plan["epochs"],
            "epochs_done": 0,
            "stopped_early": False,
            "parameters": None,
            "train_rows": plan["train_rows"],
            "test_rows": sum(c["test"] for c in description["counts"].values()),
            "target_accuracy": request["training"].get("target_accuracy"),
        },
        "epochs": [],
        "seconds": None,
        "step_seconds": None,
        "samples_per_second": None,
        "evaluation": None,
        "weights_sha256": None,
        "data": {
            "provenance": description["provenance"],
            "leaky": description["leaky"],
            "split_seed": description["split_seed"],
            "sha256": description["sha256"],
        },
        "machine": machine.describe(),
        "versions": machine.versions(),
        "source_sha256": machine.source_sha256(request["workload"]),
        "knobs": plan["knobs"],
        "seeds": {"weights": plan["seed"], "shuffle": plan["shuffle_seed"]},
    }


def _supervise(request: dict, plan: dict, folder: Path, limit: float) -> Outcome:
    """Start the ranks, echo rank 0's progress, and end all of them when one fails."""
    environment = launch.environment(request["strategy"], plan["knobs"])
    if request["instrument"] == "timeline":
        environment |= STRATEGIES[request["strategy"]].timeline_environment(folder / RAW_TIMELINE)
    command = [sys.executable, "-m", "escala.parallel.rank", str(folder / "request.json")]
    layout = Layout.parse(request["layout"])
    title = " ".join(
        filter(
            None,
            [
                request["workload"],
                request["strategy"],
                request["layout"],
                request["variant"],
                request["instrument"] or f"rep{request['repeat']}",
            ],
        )
    )
    deadline = time.monotonic() + limit
    progress = _Progress(folder / "rank0.log", title)
    with launch.launcher(request["strategy"])(command, layout, environment) as commands:
        processes = []
        try:
            for arguments, variables in commands:
                if shutil.which(arguments[0]) is None:
                    return Outcome("unavailable", f"{arguments[0]} is missing")
                processes.append(children.start(arguments, variables, folder / "launcher.log"))
            while any(p.poll() is None for p in processes):
                if any(p.poll() for p in processes):
                    break
                if time.monotonic() > deadline:
                    reason = f"not finished after {limit:g} seconds{_tail(folder, 0)}"
                    return Outcome("timeout", reason)
                time.sleep(POLL_SECONDS)
                progress.show()
            codes = [p.poll() for p in processes]
        finally:
            children.stop(processes)
            progress.show()
    if any(codes):
        return _failure(codes, folder)
    return Outcome("ok")


class _Progress:
    """Show on the terminal what rank 0 logs of itself."""

    def __init__(self, log: Path, title: str):
        self._log, self._title, self._offset = log, title, 0

    def show(self) -> None:
        if not self._log.exists():
            return
        with open(self._log, "rb") as handle:
            handle.seek(self._offset)
            text = handle.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            _, marker, message = line.partition(" escala: ")
            if marker:
                print(f"[{self._title}] {message}", file=sys.stderr, flush=True)


def _failure(codes: list[int | None], folder: Path) -> Outcome:
    """Name the rank that failed first, how, and its last lines."""
    killed = _killed_rank(codes, folder)
    # A rank that was killed makes the others fail: their errors are not the cause.
    if killed:
        rank, number = killed
        return Outcome("failed", f"rank {rank} was ended by signal {number}{_tail(folder, rank)}")
    errors = sorted(folder.glob("rank*.error.json"), key=lambda path: path.stat().st_mtime_ns)
    if errors:
        error, rank = read_json(errors[0]), int(re.search(r"\d+", errors[0].name)[0])
        return Outcome(error["status"], f"rank {rank}: {error['reason']}{_tail(folder, rank)}")
    rank, code = next((rank, code) for rank, code in enumerate(codes) if code)
    return Outcome("failed", f"rank {rank} ended with exit code {code}{_tail(folder, rank)}")


def _killed_rank(codes: list[int | None], folder: Path) -> tuple[int, int] | None:
    """Return the rank that a signal ended, and the signal, from mpirun's words or exit codes."""
    said = (folder / "launcher.log").read_text(errors="replace")
    match = re.search(r"process rank (\d+).*?exited on\s+signal (\d+)", said, re.DOTALL)
    if match:
        return int(match[1]), int(match[2])
    return next(((rank, -code) for rank, code in enumerate(codes) if code and code < 0), None)


def _tail(folder: Path, rank: int, lines: int = 5) -> str:
    log = folder / f"rank{rank}.log"
    log = log if log.exists() and log.stat().st_size else folder / "launcher.log"
    last = log.read_text(errors="replace").strip().splitlines()[-lines:] if log.exists() else []
    return "; its last lines: " + " | ".join(last)[-800:] if last else ""


def _collect(plan: dict, data: Path, folder: Path, result: dict) -> Outcome:
    """Write the ranks' measurements into `result`, if the run held to what every run must."""
    ranks = [read_json(folder / f"rank{r}.json") for r in range(plan["ranks"])]
    labels = np.load(data / "test_labels.npy", allow_pickle=False)
    table = steps.read(folder, plan["ranks"])
    problem = _broken_promise(plan, ranks, table, len(labels))
    if problem:
        return Outcome("failed", problem)
    predictions = np.concatenate(
        [
            np.load(folder / f"rank{r}.predictions.npy", allow_pickle=False)
            for r in range(plan["ranks"])
        ]
    )
    with atomic(folder.parent / PREDICTIONS) as temporary:
        np.save(temporary, predictions.astype(np.int64), allow_pickle=False)
    _keep_model(plan, data, folder, ranks[0]["weights_sha256"])
    epochs = [
        {key: value for key, value in epoch.items() if key != "row_moments"}
        | {"train_seconds": max(r["epochs"][i]["train_seconds"] for r in ranks)}
        for i, epoch in enumerate(ranks[0]["epochs"])
    ]
    train_seconds = sum(epoch["train_seconds"] for epoch in epochs)
    parts = {name: max(r["seconds"][name] for r in ranks) for name in ranks[0]["seconds"]}
    result |= {
        "epochs": epochs,
        "seconds": parts | {"train": train_seconds},
        "step_seconds": steps.summary(table),
        "samples_per_second": sum(epoch["rows"] for epoch in epochs) / train_seconds,
        "evaluation": evaluation.evaluate(labels, predictions, plan["classes"]),
        "weights_sha256": ranks[0]["weights_sha256"],
    }
    result["ranks"]["obtained"] = ranks[0]["ranks"]
    result["training"] |= {
        "optimizer": ranks[0]["optimizer"],
        "parameters": ranks[0]["parameters"],
        "epochs_done": len(epochs),
        "stopped_early": ranks[0]["stopped_early"],
    }
    return Outcome("ok")


def _keep_model(plan: dict, data: Path, folder: Path, weights_sha256: str) -> None:
    """Move the model that rank 0 saved, if it was to, beside run.json, and describe it there."""
    saved = folder / models.FILES[plan["kind"]]
    if saved.exists():
        saved.replace(folder.parent / saved.name)
        models.describe(
            folder.parent,
            plan["workload"],
            plan["kind"],
            plan["training"],
            read_json(data / "dataset.json"),
            weights_sha256,
        )


def _broken_promise(
    plan: dict, ranks: list[dict], table: pd.DataFrame, test_rows: int
) -> str | None:
    """Say which of the things every run must hold to does not, if any."""
    digests = {r["weights_sha256"] for r in ranks}
    if len(digests) > 1:
        return f"ranks hold {len(digests)} different sets of weights after training"
    cores = [r["cores"] for r in ranks]
    if cores != plan["cores"]:
        return f"asked for the cores {plan['cores']}, obtained {cores}"
    threads = [r["threads"] for r in ranks if r["threads"] != plan["knobs"]["threads"]]
    if threads:
        return f"asked for the threads {plan['knobs']['threads']}, obtained {threads[0]}"
    if len({tuple(e["steps"] for e in r["epochs"]) for r in ranks}) > 1:
        return "ranks made different numbers of steps"
    for epoch, rows in table.groupby("epoch")["rows"].sum().items():
        expected = _expected_rows(plan, ranks[0], epoch)
        trained = [sum(r["epochs"][epoch - 1]["row_moments"][k] for r in ranks) for k in (0, 1)]
        if rows != len(expected) or trained != row_moments(expected):
            return f"the shards of epoch {epoch} are not disjoint and complete"
    evaluated = sorted(tuple(r["evaluated"]) for r in ranks)
    covered = sorted(row for start, stop in evaluated for row in range(start, stop))
    if covered != list(range(test_rows)):
        return f"the evaluation covered the rows {evaluated} of {test_rows}"
    return None


def _expected_rows(plan: dict, rank: dict, epoch: int) -> np.ndarray:
    if plan["kind"] == "fit":
        return np.arange(plan["train_rows"])
    order = epoch_order(rank["train_rows"], plan["shuffle_seed"], epoch)
    return order[: rank["epochs"][epoch - 1]["rows"]]


def _clean(folder: Path) -> None:
    """Remove what an earlier attempt at the same run left, but not its finished measurements."""
    for name in ("ranks", "tensorboard"):
        shutil.rmtree(folder / name, ignore_errors=True)
    _remove(folder, PREDICTIONS, *MODEL_FILES, TIMELINE, TRACE, "run.json")


def _remove(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _tidy(ranks_folder: Path) -> None:
    """Keep logs and step times; drop what only the ranks needed."""
    for pattern in (RAW_TIMELINE, "*.predictions.npy", "rank*.json", "model.*"):
        for path in ranks_folder.glob(pattern):
            path.unlink()
    shutil.rmtree(ranks_folder / SCRATCH, ignore_errors=True)
