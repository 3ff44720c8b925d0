"""One run from its request to `run.json`: plan, supervise, collect, check, and write."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from escala.core import alone, interrupts, variables
from escala.core.environment import session
from escala.core.errors import InputError, Unavailable
from escala.core.files import atomic, write_json
from escala.core.proc import started as process_start
from escala.core.readable import name_first
from escala.probes import PROBES, timeline
from escala.programs.copy import COPY, Copy, remove
from escala.programs.program import Program
from escala.record import key, place
from escala.record.collect import PREDICTIONS, collect
from escala.record.disturbance import Kernel, with_kernel, with_stops
from escala.record.key import notes_on_changes
from escala.record.place import Links, experiment_folder, linked, placed
from escala.record.plan import identity, make_plan, resumption, split_description
from escala.record.schema import Outcome, merge_records, validate_run
from escala.record.supervise import supervise
from escala.runtime import asking
from escala.runtime.allocation import same_host
from escala.runtime.placement import Launch
from escala.strategies.base import RAW_TIMELINE, TIMELINE_FILES
from escala.training import checkpoint
from escala.training.plan import Plan
from escala.training.rank import SCRATCH
from escala.workloads import models

#: A result that is not of the form of a run.json.
INVALID = "run.invalid.json"
#: Output files that a run may have alongside run.json, and temporary ones that it removes from
#: `ranks/` at the end.
PRODUCTS = (
    PREDICTIONS,
    *models.FILES,
    *TIMELINE_FILES,
    INVALID,
    *(name for probe in PROBES.values() for name in probe.products),
)
TEMPORARY = (
    RAW_TIMELINE,
    "*.predictions.npy",
    "rank*.json",
    "model.*",
    "marks*/*.process",
    *(pattern for probe in PROBES.values() for pattern in probe.temporary),
)


@variables.kept()
def measure(
    request: dict,
    data: Path,
    output: Path,
    time_limit_seconds: float,
    turn: dict[str, int] | None = None,
    links: Links | None = None,
    nodes: Sequence[str] = (),
) -> Outcome:
    """Run what `request` asks for and write `output`, a `run.json`, whatever happens to the run.

    It waits until no other run is on this machine.

    Parameters
    ----------
    request : the run's identity, its training settings, knobs and seeds, as
        `escala.experiment.Experiment.request` returns it.
    data : folder of the split to train on.
    output : the `run.json` to write; the folder it stands in belongs to the run. A run that ends
        ok leaves what is predicted for every row of the test side in `predictions.npy` next to it,
        in their order, and its model if that is to be kept.
    turn : the run's place in its repeat (`escala.experiment.Experiment.turn`). It is recorded, and
        determines nothing.
    links : controller of the links between emulated nodes.
    nodes : names of the nodes of this job to use; see `escala.runtime.launch.survey`.

    Raises
    ------
    InputError : the layout does not fit the machines there are, or the arrays are not those their
        description tells of, and nothing was started; or the job has lost a node of the run.
    """
    # Where another run has the machine, this one has not begun: neither its time nor its limit.
    with alone.hold({"experiment": request["experiment"], "run": str(output.parent)}):
        asked = _whole(request, turn) | {"nodes": list(nodes)}
        return _measured(asked, data, output, time_limit_seconds, links)


def _measured(
    request: dict, data: Path, output: Path, time_limit_seconds: float, links: Links | None
) -> Outcome:
    """Do what `measure` does, on a machine that no other run uses."""
    started, clock, aside = datetime.now(UTC), time.monotonic(), []
    folder, ranks_folder = output.parent, output.parent / "ranks"
    description = split_description(data)
    plan = make_plan(request, description, data)
    plan |= resumption(plan, description, folder)
    known, parts = identity(request, plan, description, started), []
    try:
        outcome = _attempt(request, plan, data, folder, parts, time_limit_seconds, links, aside)
    finally:
        _tidy(ranks_folder)
    interrupts.end_if_received()
    if outcome.status != "ok":
        asking.require_answers(request["nodes"])
    if outcome.status == "ok" and "program" in known:
        parts.append({"program": {"notes": [*notes_on_changes(request, data)]}})
    seconds = time.monotonic() - clock - sum(aside)
    result = _record(known, parts, outcome, seconds, folder)
    problem = _invalid(result)
    if problem:
        # Keep what was measured, but not as a result.
        with atomic(folder / INVALID) as temporary:
            temporary.write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")
        outcome = Outcome("failed", f"{problem}; {INVALID} holds what was measured")
        result = _record(known, [], outcome, seconds, folder)
    if outcome.status == "ok":
        checkpoint.forget(folder)
    elif not problem:
        _remove(folder, PREDICTIONS, *models.FILES)
    _write(result, output)
    return outcome


def lost(
    request: dict,
    data: Path,
    output: Path,
    status: str,
    reason: str,
    turn: dict[str, int] | None = None,
) -> None:
    """Write the `run.json` of a run that ended without one: its job was killed, or never began.

    Parameters
    ----------
    request, data, output, turn : as of `measure`.
    status, reason : of an `Outcome`.
    """
    started, description = datetime.now(UTC), split_description(data)
    request = _whole(request, turn)
    # What the ranks logged tells how far it got.
    _tidy(output.parent / "ranks")
    _remove(output.parent, *PRODUCTS)
    plan = make_plan(request, description, data)
    known = identity(request, plan, description, started)
    _write(_record(known, [], Outcome(status, reason), 0.0, output.parent), output)


def _whole(request: dict, turn: dict[str, int] | None) -> dict:
    """Return a request with its own digest and the run's turn."""
    return request | {"sha256": key.request_sha256(request), "turn": turn}


def _attempt(
    request: dict,
    plan: Plan,
    data: Path,
    folder: Path,
    parts: list[Mapping],
    limit: float,
    links: Links | None,
    aside: list[float],
) -> Outcome:
    """Run the ranks; whatever fails is an outcome.

    Parameters
    ----------
    parts : takes what is found of the run, as parts of its run.json in the order of time.
    aside : takes the seconds of what looks at nodes, links and cores, and of copies of a folder,
        which are no part of a run.
    """
    ranks_folder = folder / "ranks"
    try:
        plan["supervisor"] = {
            "pid": os.getpid(),
            "started": process_start(),
            "host": socket.gethostname(),
            "experiment": request["experiment"],
            "run": str(folder),
        }
        with _timed(aside):
            started = _begin(request, plan, folder, parts, links)
            outcome = linked(request, started, links, folder)
            parts.append(outcome.found)
            if outcome.status != "ok":
                return outcome
        with _isolated(plan, ranks_folder.resolve(), parts, aside) as refused:
            with _timed(aside):
                write_json(ranks_folder / "plan.json", plan, durable=False)
                kernel = Kernel(_cores_here(plan, started))
                kernel.time()
            outcome = supervise(request, plan, started, ranks_folder, limit, refused)
        stopped_seconds = outcome.stopped_seconds
        timeline.keep(ranks_folder)
        if outcome.status == "ok":
            outcome = place.check_transport(request, ranks_folder, started.nodes[0].interface)
            parts.append(outcome.found)
        if outcome.status == "ok":
            with _timed(aside):
                kernel.time()
            outcome = collect(plan, data, ranks_folder)
            found = outcome.found
            if outcome.status == "ok":
                log = experiment_folder(request, folder) / f"logs/kernel-{session()}.json"
                judged = with_kernel(found["disturbance"], kernel.judge(log))
                found = {**found, "disturbance": with_stops(judged, stopped_seconds)}
            parts.append(found)
        return outcome
    except InputError:
        raise
    except Unavailable as missing:
        return Outcome("unavailable", str(missing)[:500])
    except Exception as error:
        if interrupts.received():
            raise  # What goes wrong while it is ended is no failure of the run.
        with open(ranks_folder / "launcher.log", "a", encoding="utf-8") as log:
            traceback.print_exc(file=log)
        return Outcome("failed", f"{type(error).__name__}: {error}"[:500])


@contextmanager
def _timed(aside: list[float]) -> Iterator[None]:
    clock = time.monotonic()
    try:
        yield
    finally:
        aside.append(time.monotonic() - clock)


@contextmanager
def _isolated(
    plan: Plan, folder: Path, parts: list[Mapping], aside: list[float]
) -> Iterator[Callable[[], str | None]]:
    """Let the program of a run work in a copy of its folder, and note what it wrote there.

    It yields what tells why the program must end (`Copy.guard`).
    """
    program = Program.from_plan(plan["start"]["program"]) if "start" in plan else None
    if program is None or program.in_place:
        yield lambda: None
        return
    try:
        with _timed(aside):
            copy = Copy(program, folder / COPY, folder.parent)
            copy.make()
        plan["start"]["copy"] = vars(copy.moved)
        with copy.guard() as refused:
            yield refused
        with _timed(aside):
            names = copy.list_written()
        if names:
            note = (
                f"it wrote {name_first(names)} into its folder, of which each run has a copy of "
                "its own. Remedy: let it write to {output} what is to stay"
            )
            parts.append({"program": {"notes": [note]}})
    finally:
        with _timed(aside):
            remove(folder / COPY)


def _cores_here(plan: Plan, started: Launch) -> list[int] | None:
    """Return the cores of a run; None if another machine has some of them."""
    if not all(same_host(node.host, socket.gethostname()) for node in started.nodes):
        return None
    return sorted({core for place in plan["places"] for core in place["cores"]})


def _begin(
    request: dict, plan: Plan, folder: Path, parts: list[Mapping], links: Links | None
) -> Launch:
    """Find a run's nodes, and remove what its last measurement left unless its input is refused."""
    try:
        started, found = placed(request, plan, links)
    except InputError:
        raise
    except Exception:
        _clean(folder)
        raise
    _clean(folder)
    parts.append(found)
    return started


def _record(
    known: dict, parts: Sequence[Mapping], outcome: Outcome, wall_seconds: float, folder: Path
) -> dict:
    """Return the content of a run.json: what was known before, what was found, and the outcome."""
    reason, kept = outcome.reason, checkpoint.latest(folder)
    if kept and outcome.status != "ok":
        reason = f"{reason}; repeated, it goes on after epoch {kept}"
    last = {"status": outcome.status, "reason": reason, "wall_seconds": wall_seconds}
    return merge_records(known, *parts, last)


def _invalid(result: dict) -> str | None:
    """Return why a result cannot be a run.json, or None."""
    try:
        validate_run(result)
        json.dumps(result, allow_nan=False)
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def _write(result: dict, output: Path) -> None:
    write_json(output.parent / "sessions" / f"{result['session']}.json", result)
    write_json(output, result)


def _clean(folder: Path) -> None:
    """Remove what an earlier attempt at the same run left, but for measurements and checkpoint."""
    remove(folder / "ranks" / COPY)
    for name in ("ranks", "tensorboard", "output"):
        shutil.rmtree(folder / name, ignore_errors=True)
    _remove(folder, *PRODUCTS, "run.json")
    (folder / "ranks").mkdir(parents=True)


def _remove(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _tidy(ranks_folder: Path) -> None:
    """Keep logs and step times; drop what only the ranks needed."""
    for pattern in TEMPORARY:
        for path in ranks_folder.glob(pattern):
            path.unlink()
    shutil.rmtree(ranks_folder / SCRATCH, ignore_errors=True)
