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
from escala.core.files import write_json, write_text
from escala.core.proc import start_time as process_start
from escala.core.readable import name_first
from escala.probes import PROBES, timeline
from escala.programs.copy import COPY, Copy, remove
from escala.programs.program import Program
from escala.record import key
from escala.record.collect import PREDICTIONS, collect
from escala.record.disturbance import Kernel, with_kernel, with_stops
from escala.record.key import notes_on_changes
from escala.record.plan import describe_start, make_plan, resumption, split_description
from escala.record.schema import Outcome, merge_records, validate_run
from escala.record.supervise import (
    Links,
    check_transport,
    experiment_folder,
    place_ranks,
    set_links,
    supervise,
)
from escala.runtime import asking
from escala.runtime.slurm import same_host
from escala.strategies.base import RAW_TIMELINE, TIMELINE_FILES
from escala.training import checkpoint
from escala.training.process import Plan
from escala.training.rank import SCRATCH
from escala.workloads import models

#: Name of the file for a result that is no valid run.json.
INVALID = "run.invalid.json"
#: Output files that a run may have alongside run.json, and temporary files that it removes from
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


@variables.drop_additions()
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

    Before the run, wait until no other run is on this machine.

    Parameters
    ----------
    request : the run's identity, its training settings, knobs and seeds, as
        `escala.experiment.matrix.Experiment.request` returns it.
    data : folder of the split to train on.
    output : the `run.json` to write. The folder of this file belongs to the run. A run that ends ok
        leaves two things there: `predictions.npy`, with the prediction for every test row in the
        order of the rows, and its model if the request asks for that.
    turn : the run's place in its repeat (`escala.experiment.expand.turns`). It is recorded, and
        determines nothing.
    links : controller of the links between emulated nodes.
    nodes : names of the nodes of this job to use; see `escala.runtime.launch.survey`.

    Raises
    ------
    InputError : nothing was started, because the layout does not fit the machines, or an array
        differs from its description. Or the job has lost a node of the run.
    """
    folder = output.parent
    # While another run is waited for, neither the time of this run nor its limit has begun.
    with alone.hold({"experiment": request["experiment"], "run": str(folder)}):
        started, clock = datetime.now(UTC), time.monotonic()
        request = _complete(request, turn) | {"nodes": list(nodes)}
        description = split_description(data)
        plan = make_plan(request, description, data)
        plan |= resumption(plan, description, folder)
        known = describe_start(request, plan, description, started)
        attempt = _Attempt(request, plan, data, folder, links)
        try:
            outcome = attempt.run(time_limit_seconds)
        finally:
            _tidy(folder / "ranks")
        interrupts.end_if_received()
        if outcome.status != "ok":
            asking.require_answers(request["nodes"])
        elif "program" in known:
            attempt.parts.append({"program": {"notes": [*notes_on_changes(request, data)]}})
        seconds = time.monotonic() - clock - attempt.aside
        result, problem = _record(known, attempt.parts, outcome, seconds, folder), None
        try:
            validate_run(result)
            json.dumps(result, allow_nan=False)
        except (ValueError, TypeError) as error:
            problem = str(error)
            # Keep what was measured, but not as a result.
            write_text(folder / INVALID, json.dumps(result, indent=1, default=str) + "\n")
            outcome = Outcome("failed", f"{problem}; {INVALID} holds what was measured")
            result = _record(known, [], outcome, seconds, folder)
        if outcome.status == "ok":
            checkpoint.forget(folder)
        elif not problem:
            _remove(folder, PREDICTIONS, *models.FILES)
        _write(result, output)
        return outcome


def write_lost(
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
    request, data, output, turn : as in `measure`.
    status, reason : as in `Outcome`.
    """
    started, description = datetime.now(UTC), split_description(data)
    request = _complete(request, turn)
    # What the ranks logged tells how far the run got.
    _tidy(output.parent / "ranks")
    _remove(output.parent, *PRODUCTS)
    plan = make_plan(request, description, data)
    known = describe_start(request, plan, description, started)
    _write(_record(known, [], Outcome(status, reason), 0.0, output.parent), output)


def _complete(request: dict, turn: dict[str, int] | None) -> dict:
    """Return a request with its digest `sha256` and the run's `turn`."""
    return request | {"sha256": key.request_sha256(request), "turn": turn}


class _Attempt:
    """An attempt at a run.

    Attributes
    ----------
    parts : parts of the run.json, in the order in which they were measured.
    aside : seconds of work that is no part of the run: looking at nodes, links and cores, and
        copying the folder of a program.
    """

    def __init__(self, request: dict, plan: Plan, data: Path, folder: Path, links: Links | None):
        self.request, self.plan, self.data, self.links = request, plan, data, links
        self.folder, self._ranks = folder, folder / "ranks"
        self.parts: list[Mapping] = []
        self.aside = 0.0

    def run(self, limit_seconds: float) -> Outcome:
        """Run the ranks. Every failure becomes an outcome, except wrong input."""
        try:
            return self._run(limit_seconds)
        except InputError:
            raise
        except Unavailable as missing:
            return Outcome("unavailable", str(missing)[:500])
        except Exception as error:
            if interrupts.was_signalled():
                raise  # An error while a signal ends the run is no failure of the run.
            with open(self._ranks / "launcher.log", "a", encoding="utf-8") as log:
                traceback.print_exc(file=log)
            return Outcome("failed", f"{type(error).__name__}: {error}"[:500])

    def _run(self, limit_seconds: float) -> Outcome:
        request, plan = self.request, self.plan
        plan["supervisor"] = {
            "pid": os.getpid(),
            "started": process_start(),
            "host": socket.gethostname(),
            "experiment": request["experiment"],
            "run": str(self.folder),
        }
        with self._set_aside():
            try:
                choice, ranks = place_ranks(request, plan, self.links)
            except InputError:
                raise  # Do not remove the files of the last attempt.
            except Exception:
                _clean(self.folder)
                raise
            _clean(self.folder)
            self.parts.append(ranks)
            outcome = set_links(request, choice, self.links, self.folder)
            self.parts.append(outcome.measured)
            if outcome.status != "ok":
                return outcome
        with self._copy_of_program() as why_end:
            with self._set_aside():
                write_json(self._ranks / "plan.json", plan, durable=False)
                here = all(same_host(node.host, socket.gethostname()) for node in choice.nodes)
                cores = {core for place in plan["places"] for core in place["cores"]}
                kernel = Kernel(sorted(cores) if here else None)
                kernel.time()
            outcome = supervise(request, plan, choice, self._ranks, limit_seconds, why_end)
        stopped_seconds = outcome.stopped_seconds
        timeline.keep(self._ranks)
        if outcome.status == "ok":
            outcome = check_transport(request, self._ranks, choice.nodes[0].interface)
            self.parts.append(outcome.measured)
        if outcome.status == "ok":
            with self._set_aside():
                kernel.time()
            outcome = collect(plan, self.data, self._ranks)
            measured = outcome.measured
            if outcome.status == "ok":
                logs = experiment_folder(request, self.folder) / "logs"
                times = kernel.judge(logs / f"kernel-{session()}.json")
                judged = with_stops(with_kernel(measured["disturbance"], times), stopped_seconds)
                measured = {**measured, "disturbance": judged}
            self.parts.append(measured)
        return outcome

    @contextmanager
    def _set_aside(self) -> Iterator[None]:
        clock = time.monotonic()
        try:
            yield
        finally:
            self.aside += time.monotonic() - clock

    @contextmanager
    def _copy_of_program(self) -> Iterator[Callable[[], str | None]]:
        """Let a program work in a copy of its folder, and note what it wrote there.

        Yield a function that returns why the program must end, or None (`Copy.guard`).
        """
        start, folder = self.plan.get("start"), self._ranks.resolve()
        program = Program.from_plan(start["program"]) if start else None
        if program is None or program.in_place:
            yield lambda: None
            return
        try:
            with self._set_aside():
                copy = Copy(program, folder / COPY, folder.parent)
                copy.make()
            start["copy"] = vars(copy.paths)
            with copy.guard() as why_end:
                yield why_end
            with self._set_aside():
                names = copy.list_written()
            if names:
                note = (
                    f"it wrote {name_first(names)} into the copy of its folder, which is deleted. "
                    "Remedy: let it write to {output} what is to stay"
                )
                self.parts.append({"program": {"notes": [note]}})
        finally:
            with self._set_aside():
                remove(folder / COPY)


def _record(
    known: dict, parts: Sequence[Mapping], outcome: Outcome, wall_seconds: float, folder: Path
) -> dict:
    """Return a run.json of what was known before the run, what was measured, and the outcome."""
    reason, kept = outcome.reason, checkpoint.latest(folder)
    if kept and outcome.status != "ok":
        reason = f"{reason}; the next attempt goes on after epoch {kept}"
    last = {"status": outcome.status, "reason": reason, "wall_seconds": wall_seconds}
    if kept:
        last["checkpoint_bytes"] = checkpoint.count_bytes(folder)
    return merge_records(known, *parts, last)


def _write(result: dict, output: Path) -> None:
    write_json(output.parent / "sessions" / f"{result['session']}.json", result)
    write_json(output, result)


def _clean(folder: Path) -> None:
    """Remove the files of an earlier attempt at the run, except measurements and checkpoint."""
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
