"""One run from its request to `run.json`: start the ranks, watch them, collect what they found."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from escala import interrupts, lab
from escala.environment import session
from escala.errors import InputError
from escala.files import atomic, read_json, settle, sha256_file, write_json
from escala.measure import key, machine, resources, steps, timeline
from escala.measure.schema import validate_run
from escala.parallel import checkpoint, children, launch
from escala.parallel.knobs import complete
from escala.parallel.launch import Launch
from escala.parallel.layout import Layout
from escala.parallel.placement import places
from escala.parallel.rank import SCRATCH
from escala.parallel.shards import Shards, row_moments
from escala.parallel.strategies import STRATEGIES
from escala.workloads import WORKLOADS, models

FORMAT = 6
POLL_SECONDS = 0.1
SIGNAL_SECONDS = 0.5
RAW_TIMELINE, TIMELINE, TRACE = "timeline.raw", "timeline.json", "trace.json"
PREDICTIONS = "predictions.npy"
EVALUATION = "escala.measure.evaluation"
#: A result that is not of the form of a run.json.
INVALID = "run.invalid.json"
PRODUCTS = (PREDICTIONS, *models.FILES, TIMELINE, TRACE, INVALID)


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
    InputError : the layout does not fit the machines there are, or the arrays are not those their
        description tells of; nothing was started.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    folder, ranks_folder = output.parent, output.parent / "ranks"
    _clean(folder)
    ranks_folder.mkdir(parents=True)
    description = _description(data)
    plan = _plan(request, description, data)
    plan |= _resumption(plan, description, folder)
    identity = _identity(request, plan, description, started)
    result = copy.deepcopy(identity)
    try:
        outcome = _attempt(request, plan, data, ranks_folder, result, time_limit_seconds)
    finally:
        _tidy(ranks_folder)
    interrupts.end_if_received()
    seconds = time.monotonic() - clock
    problem = _invalid(result, outcome, seconds)
    if problem:
        # What was measured is kept, and taken for no result.
        with atomic(folder / INVALID) as temporary:
            temporary.write_text(json.dumps(result, indent=1, default=str) + "\n")
        reason = f"{problem}; {INVALID} holds what was measured"
        result, outcome = identity, Outcome("failed", reason)
    if outcome.status == "ok":
        checkpoint.forget(folder)
    elif not problem:
        _remove(folder, PREDICTIONS, *models.FILES)
    _finish(result, outcome, output, seconds)
    return outcome


def lost(request: dict, data: Path, output: Path, status: str, reason: str) -> None:
    """Write the `run.json` of a run that ended without one: its job was killed, or never began.

    Parameters
    ----------
    request, data, output : as of `measure`.
    status, reason : of an `Outcome`.
    """
    started, description = datetime.now(UTC), _description(data)
    # What the ranks logged tells how far it got.
    _tidy(output.parent / "ranks")
    _remove(output.parent, *PRODUCTS)
    plan = _plan(request, description, data)
    result = _identity(request, plan, description, started)
    _finish(result, Outcome(status, reason), output, 0.0)


def _invalid(result: dict, outcome: Outcome, wall_seconds: float) -> str | None:
    """Complete a result, and return why it cannot be a run.json, or None."""
    result |= {"status": outcome.status, "reason": outcome.reason, "wall_seconds": wall_seconds}
    try:
        validate_run(result)
        json.dumps(result, allow_nan=False)
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def _finish(result: dict, outcome: Outcome, output: Path, wall_seconds: float) -> None:
    reason, kept = outcome.reason, checkpoint.latest(output.parent)
    if kept:
        reason = f"{reason}; repeated, it goes on after epoch {kept}"
    result |= {"status": outcome.status, "reason": reason, "wall_seconds": wall_seconds}
    write_json(output.parent / "sessions" / f"{result['session']}.json", result)
    write_json(output, result)


def _attempt(
    request: dict, plan: dict, data: Path, ranks_folder: Path, result: dict, limit: float
) -> Outcome:
    """Run the ranks and write what they measured into `result`; whatever fails is an outcome."""
    try:
        started = _placed(request, plan, result)
        outcome = _linked(request, started, result)
        if outcome.status != "ok":
            return outcome
        write_json(ranks_folder / "request.json", plan, durable=False)
        outcome = _supervise(request, plan, started, ranks_folder, limit)
        raw = ranks_folder / RAW_TIMELINE
        if raw.exists():
            folder = ranks_folder.parent
            timeline.write(raw, folder / TIMELINE, folder / TRACE)
        return _collect(plan, data, ranks_folder, result) if outcome.status == "ok" else outcome
    except InputError:
        raise
    except Exception as error:
        if interrupts.received():
            raise  # What goes wrong while it is ended is no failure of the run.
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
    knobs = complete(request["knobs"])
    together = STRATEGIES[request["strategy"]].one_process_per_node
    cores = knobs["cores_per_process"] * (layout.processes if together else 1)
    threads = dict.fromkeys(("intra_op", "inter_op"), cores)
    common = {
        "strategy": request["strategy"],
        "workload": request["workload"],
        "kind": WORKLOADS[request["workload"]].kind,
        "training": request["training"],
        "knobs": knobs | {"threads": threads | knobs["threads"]},
        "ranks": layout.ranks,
        "data": str(data.resolve()),
        "classes": description["classes"],
        "train_counts": [description["counts"][c]["train"] for c in description["classes"]],
        "train_rows": sum(c["balanced"] for c in description["counts"].values()),
        "max_steps": request.get("max_steps"),
        "sample_seconds": request["sample_seconds"],
        "instrument": request["instrument"],
    }
    by_kind = {"gradient": _by_gradient, "fit": _by_fit}
    return common | by_kind[common["kind"]](common, request["repeat"] or 1)


def _resumption(plan: dict, description: dict, folder: Path) -> dict:
    """Return after which epoch the run goes on, 0 if it begins, and what a checkpoint is known by.

    A checkpoint of a run under other settings, on other data or by other code is removed.
    """
    own = {key: value for key, value in plan.items() if key not in ("data", "sample_seconds")}
    own |= {
        "sha256": description["sha256"],
        "source": key.code_sha256(plan["workload"], plan["strategy"]),
    }
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()
    epoch = checkpoint.latest(folder, digest)
    if epoch is None:
        checkpoint.forget(folder)
    return {"digest": digest, "resume_after": epoch or 0}


def _placed(request: dict, plan: dict, result: dict) -> Launch:
    """Find the nodes of a run, and put the place of every process into its plan and its result.

    Raises
    ------
    InputError : there are fewer nodes or cores than the layout asks for.
    """
    layout, strategy = Layout.parse(request["layout"]), STRATEGIES[request["strategy"]]
    per_process = plan["knobs"]["cores_per_process"]
    started = launch.survey(layout, strategy, request["link"]["interface"], request["launcher"])
    needed, available = layout.processes * per_process, min(len(n.cores) for n in started.nodes)
    if needed > available and not request["oversubscribe"]:
        raise InputError(
            "layout",
            request["layout"],
            f"needs {needed} cores on each node, and {available} are available",
            "ask for fewer processes or set oversubscribe: true",
        )
    plan["places"] = places(layout, strategy, plan["knobs"], started.nodes)
    result["ranks"] |= {
        "launcher": started.launcher,
        "hosts": [node.host for node in started.nodes],
        "machines": [node.machine for node in started.nodes],
        "interface": started.nodes[0].interface,
        "oversubscribed": needed > available or _shared(started),
        "cores": [place["cores"] for place in plan["places"]],
    }
    return started


def _shared(started: Launch) -> bool:
    """Return whether nodes share cores, as those of the lab may: they are one machine's."""
    taken = [core for node in started.nodes for core in node.cores]
    return lab.location() is not None and len(set(taken)) < len(taken)


def _linked(request: dict, started: Launch, result: dict) -> Outcome:
    """Give the links between nodes the rate that was asked for, and measure what they have."""
    rate, hosts = request["link"]["rate"], [node.host for node in started.nodes]
    emulated = lab.location() is not None
    if len(hosts) == 1:
        return Outcome("ok")
    if rate and not emulated:
        return Outcome(
            "unavailable",
            f"the rate {rate} can be set on the links of the lab alone; docs/how-to/lab.md",
        )
    result["link"] = request["link"] | {"mbit_per_second": None, "latency_ms": None}
    if emulated:
        lab.shape(rate or "native")
        result["link"] |= lab.measure(hosts[0], hosts[1])
    return Outcome("ok")


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
    threads = plan["knobs"]["threads"]["intra_op"] or plan["knobs"]["cores_per_process"]
    return {
        "knobs": plan["knobs"] | {"threads": {"intra_op": threads, "inter_op": 1}},
        "epochs": 1,
        "global_batch": plan["train_rows"],
        "learning_rate": None,
        "seed": None,
        "shuffle_seed": None,
    }


def _identity(request: dict, plan: dict, description: dict, started: datetime) -> dict:
    """Return what is known of a run before it starts: with a status, a valid run.json.

    Raises
    ------
    ValueError : it would not be one.
    """
    names = (
        "experiment",
        "dataset",
        "workload",
        "strategy",
        "layout",
        "variant",
        "network",
        "repeat",
        "pair",
        "instrument",
    )
    identity = {
        "format": FORMAT,
        **{name: request[name] for name in names},
        "session": session(),
        "started": started.isoformat(timespec="seconds"),
        "ranks": {
            "asked": plan["ranks"],
            "obtained": None,
            "launcher": None,
            "hosts": [],
            "machines": [],
            "interface": None,
            "oversubscribed": False,
            "one_clock": None,
            "cores": [],
            "shares": None,
            "threads": plan["knobs"]["threads"],
        },
        "training": {
            "kind": plan["kind"],
            "global_batch": plan["global_batch"],
            "rows_per_rank": -(-plan["global_batch"] // plan["ranks"]),
            "learning_rate": plan["learning_rate"],
            "optimizer": None,
            "epochs_asked": plan["epochs"],
            "steps_per_epoch": _shards(plan, [1 / plan["ranks"]] * plan["ranks"]).steps(None),
            "epochs_done": 0,
            "stopped_early": False,
            "resumed_after": [],
            "parameters": None,
            "train_rows": plan["train_rows"],
            "test_rows": sum(c["test"] for c in description["counts"].values()),
            "target_accuracy": request["training"].get("target_accuracy"),
        },
        "link": None,
        "epochs": [],
        "seconds": None,
        "step_seconds": None,
        "samples_per_second": None,
        "evaluation": None,
        "resources": None,
        "weights_sha256": None,
        "data": {
            "provenance": description["provenance"],
            "leaky": description["leaky"],
            "split_seed": description["split_seed"],
            "sha256": description["sha256"],
        },
        "machine": machine.describe(),
        "versions": machine.versions(),
        "source_sha256": key.code_sha256(request["workload"], request["strategy"]),
        "knobs": plan["knobs"],
        "seeds": {"weights": plan["seed"], "shuffle": plan["shuffle_seed"]},
    }
    validate_run(identity | {"status": "failed", "reason": "not started", "wall_seconds": 0.0})
    return identity


def _supervise(request: dict, plan: dict, started: Launch, folder: Path, limit: float) -> Outcome:
    """Start the ranks, echo rank 0's progress, and end all of them when one fails."""
    strategy = STRATEGIES[request["strategy"]]
    environment = launch.environment(request["strategy"], plan["knobs"], started)
    if request["instrument"] in ("timeline", "clocks") or plan["knobs"]["timeline"]:
        # Clocks tell by themselves which rank was ready when, and a timing run need not know.
        environment |= strategy.timeline_environment(
            folder / RAW_TIMELINE, negotiation=request["instrument"] == "timeline"
        )
    command = [sys.executable, "-m", "escala.parallel.rank", str(folder / "request.json")]
    title = " ".join(
        filter(
            None,
            [
                request["workload"],
                request["strategy"],
                request["layout"],
                request["variant"],
                request["pair"],
                request["instrument"] or f"rep{request['repeat']}",
            ],
        )
    )
    deadline = time.monotonic() + limit
    progress = _Progress(folder / "rank0.log", title)
    with launch.started_by(started, strategy, plan["places"], command) as (arguments, added):
        if shutil.which(arguments[0]) is None:
            return Outcome("unavailable", f"{arguments[0]} is missing")
        launcher = children.start(arguments, environment | added, folder / "launcher.log")
        beside = [launcher]
        # It loads scikit-learn, in a second that the ranks need to load TensorFlow anyway.
        import_module(EVALUATION)
        try:
            if plan["sample_seconds"]:
                beside += launch.samplers(started, folder, plan["sample_seconds"], environment)
            while launcher.poll() is None:
                interrupts.end_if_received()
                if time.monotonic() > deadline:
                    reason = f"not finished after {limit:g} seconds{_tail(folder, 0)}"
                    return Outcome("timeout", reason)
                time.sleep(POLL_SECONDS)
                progress.show()
            code = launcher.poll()
            if code:
                # A signal to a whole job ends the ranks, and is on its way to this process.
                time.sleep(SIGNAL_SECONDS)
        finally:
            children.stop(beside)
            launch.end_steps(started)
            progress.show()
    return _failure(code, folder) if code else Outcome("ok")


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
                with suppress(OSError):  # A terminal that is gone ends no run.
                    print(f"[{self._title}] {message}", file=sys.stderr, flush=True)


def _failure(code: int, folder: Path) -> Outcome:
    """Name the rank that failed first, how, and its last lines."""
    killed = _killed_rank(folder)
    # A rank that was killed makes the others fail: their errors are not the cause.
    if killed:
        rank, number = killed
        return Outcome("failed", f"rank {rank} was ended by signal {number}{_tail(folder, rank)}")
    errors = sorted(folder.glob("rank*.error.json"), key=lambda path: path.stat().st_mtime_ns)
    if errors:
        error, rank = read_json(errors[0]), int(re.search(r"\d+", errors[0].name)[0])
        return Outcome(error["status"], f"rank {rank}: {error['reason']}{_tail(folder, rank)}")
    return Outcome("failed", f"the launcher ended with exit code {code}{_launcher_tail(folder)}")


def _killed_rank(folder: Path) -> tuple[int, int] | None:
    """Return the rank that a signal ended, and the signal, from the launcher's words."""
    said = (folder / "launcher.log").read_text(errors="replace")
    # mpirun, and `escala.parallel.spawn`, which says it alike.
    match = re.search(r"process rank (\d+).*?exited on\s+signal (\d+)", said, re.DOTALL)
    if match:
        return int(match[1]), int(match[2])
    # srun; it also names the ranks that it ended because of that one, later.
    match = re.search(r"^srun: error: \S+: tasks? (\d+)\S*: ([A-Z].*)$", said, re.MULTILINE)
    by_name = {signal.strsignal(number): int(number) for number in signal.Signals}
    number = by_name.get(match[2].partition(" (")[0]) if match else None
    return (int(match[1]), number) if number else None


def _tail(folder: Path, rank: int) -> str:
    log = folder / f"rank{rank}.log"
    return _last_lines(log if log.exists() and log.stat().st_size else folder / "launcher.log")


def _launcher_tail(folder: Path) -> str:
    return _last_lines(folder / "launcher.log")


def _last_lines(log: Path, lines: int = 5) -> str:
    last = log.read_text(errors="replace").strip().splitlines()[-lines:] if log.exists() else []
    return "; its last lines: " + " | ".join(last)[-800:] if last else ""


def _collect(plan: dict, data: Path, folder: Path, result: dict) -> Outcome:
    """Write the ranks' measurements into `result`, if the run held to what every run must."""
    everyone = [read_json(folder / f"rank{r}.json") for r in range(len(plan["places"]))]
    ranks = [each for each in everyone if "epochs" in each]
    labels = np.load(data / "test_labels.npy", allow_pickle=False)
    table = steps.read(folder, len(ranks))
    problem = _misplaced(plan, everyone) or _broken_promise(plan, ranks, table, len(labels))
    if problem:
        return Outcome("failed", problem)
    predictions = np.concatenate(
        [
            np.load(folder / f"rank{r}.predictions.npy", allow_pickle=False)
            for r in range(len(ranks))
        ]
    )
    with atomic(folder.parent / PREDICTIONS) as temporary:
        np.save(temporary, predictions.astype(np.int64), allow_pickle=False)
    weights_sha256 = ranks[0]["weights_sha256"][0]
    _keep_model(plan, data, folder, weights_sha256)
    epochs = [
        {key: value for key, value in epoch.items() if key not in ("row_moments", "began")}
        | {"train_seconds": max(r["epochs"][i]["train_seconds"] for r in ranks)}
        for i, epoch in enumerate(ranks[0]["epochs"])
    ]
    train_seconds = sum(epoch["train_seconds"] for epoch in epochs)
    # What starts a step and goes on does not know how long it takes.
    asynchronous = STRATEGIES[plan["strategy"]].asynchronous
    parts = {name: max(r["seconds"][name] for r in ranks) for name in ranks[0]["seconds"]}
    result |= {
        "epochs": epochs,
        "seconds": parts | {"train": train_seconds},
        "step_seconds": None if asynchronous else steps.summary(table),
        "samples_per_second": sum(epoch["rows"] for epoch in epochs) / train_seconds,
        "evaluation": import_module(EVALUATION).evaluate(labels, predictions, plan["classes"]),
        "resources": _resources(plan, folder, everyone),
        "weights_sha256": weights_sha256,
    }
    result["ranks"] |= {
        "obtained": ranks[0]["ranks"],
        "one_clock": len({each["boot"] for each in everyone}) == 1,
        "shares": ranks[0]["shares"],
    }
    result["training"] |= {
        "optimizer": ranks[0]["optimizer"],
        "parameters": ranks[0]["parameters"],
        "epochs_done": len(epochs),
        "stopped_early": ranks[0]["stopped_early"],
        "resumed_after": ranks[0]["resumed_after"],
    }
    return Outcome("ok")


def _resources(plan: dict, folder: Path, everyone: list[dict]) -> list[dict] | None:
    """Return what each process used during the training steps, if that was sampled.

    A process that only serves others has the steps of one that trains on the same machine.
    """
    if not plan["sample_seconds"]:
        return None
    own = {number: _trained(each) for number, each in enumerate(everyone) if "epochs" in each}
    of_machine = {everyone[number]["boot"]: moments for number, moments in own.items()}
    within = {number: of_machine.get(each["boot"]) for number, each in enumerate(everyone)} | own
    return resources.summary(resources.read(folder), within)


def _trained(process: dict) -> tuple[float, float] | None:
    """Return when the training steps of this sitting began and ended, in `time.monotonic`.

    None stands for a run that went on after its last epoch.
    """
    epochs = process["epochs"][max(process["resumed_after"], default=0) :]
    if not epochs:
        return None
    return epochs[0]["began"], epochs[-1]["began"] + epochs[-1]["train_seconds"]


def _keep_model(plan: dict, data: Path, folder: Path, weights_sha256: str) -> None:
    """Move the model that rank 0 saved, if it was to, beside run.json, and describe it there."""
    saved = folder / models.WEIGHTS
    if saved.exists():
        settle(saved, folder.parent / saved.name)
        models.describe(
            folder.parent,
            plan["workload"],
            plan["knobs"]["stem"],
            plan["training"],
            read_json(data / "dataset.json"),
            weights_sha256,
        )


def _misplaced(plan: dict, processes: list[dict]) -> str | None:
    """Return which hosts, cores or threads of processes were not those asked for, or None."""
    for part in ("host", "cores"):
        asked, obtained = [place[part] for place in plan["places"]], [p[part] for p in processes]
        if asked != obtained:
            return f"asked for the {part} {asked}, obtained {obtained}"
    threads = [p["threads"] for p in processes if p["threads"] != plan["knobs"]["threads"]]
    if threads:
        return f"asked for the threads {plan['knobs']['threads']}, obtained {threads[0]}"
    return None


def _broken_promise(
    plan: dict, ranks: list[dict], table: pd.DataFrame, test_rows: int
) -> str | None:
    """Return which invariant of every run is violated, or None."""
    digests = {digest for r in ranks for digest in r["weights_sha256"]}
    if len(digests) > 1:
        return f"ranks hold {len(digests)} different sets of weights after training"
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
    of_epoch = _shards(plan, rank["shares"]).of_epoch(epoch)
    steps = islice(of_epoch, rank["epochs"][epoch - 1]["steps"])
    return np.concatenate([rows for of_rank in steps for rows in of_rank])


def _shards(plan: dict, shares: list[float]) -> Shards:
    return Shards(
        plan["shuffle_seed"],
        plan["train_rows"],
        plan["global_batch"],
        shares,
        plan["knobs"]["shard"],
    )


def _clean(folder: Path) -> None:
    """Remove what an earlier attempt at the same run left, but for measurements and checkpoint."""
    for name in ("ranks", "tensorboard"):
        shutil.rmtree(folder / name, ignore_errors=True)
    _remove(folder, *PRODUCTS, "run.json")


def _remove(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _tidy(ranks_folder: Path) -> None:
    """Keep logs and step times; drop what only the ranks needed."""
    for pattern in (RAW_TIMELINE, "*.predictions.npy", "rank*.json", "rank*.pid", "model.*"):
        for path in ranks_folder.glob(pattern):
            path.unlink()
    shutil.rmtree(ranks_folder / SCRATCH, ignore_errors=True)
