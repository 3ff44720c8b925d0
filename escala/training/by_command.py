"""Run a user's own program in the place of a rank, and read its steps.

The program is a child of this process: it has its cores, its variables, and its end. What it writes
goes to the rank's log. Its steps are known by its hook (`escala/hook/escala_steps.py`), or by
patterns of its output, or not at all; then its time is that of the whole run.
"""

from __future__ import annotations

import csv
import ctypes
import logging
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from escala.core import children
from escala.core.errors import Diverged, Failed
from escala.core.readable import size
from escala.probes import Probe
from escala.strategies import STRATEGIES
from escala.strategies.shared.place import Place
from escala.training import marks
from escala.training.data import STEP_COLUMNS
from escala.training.marks import Epoch, Mark, Searched
from escala.training.process import load_reader
from escala.workloads.program import DATA, Program, environment

log = logging.getLogger("escala")

#: The folder of the module that programs may import.
HOOK = Path(__file__).resolve().parents[1] / "hook"
#: Bytes of a program's output that are kept: of its beginning, and of its end.
KEPT_BYTES = 2**20
#: Processes that a program started may need so long to end after it.
GRACE_SECONDS = 2.0
_READ_BYTES = 2**16
_POLL_SECONDS = 0.5
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
#: What Python and shells write where nobody answers.
_ASKED = re.compile(r"EOFError|end of file|EOF when reading", re.IGNORECASE)
_TRACEBACK = "Traceback (most recent call last)"


def run(request: dict, folder: Path, place: Place, probe: Probe | None) -> dict:
    """Run the program of a rank, and return what it tells of itself.

    Parameters
    ----------
    request : the run's plan (`escala.record.plan`).
    folder : the run's `ranks/` folder; receives the steps of this process, if they are known.

    Raises
    ------
    Failed : the program ended with an error, left processes behind, made fewer epochs than were
        asked for, or took another number of rows.
    Diverged : it reported a number that is not finite.
    """
    program, plan = Program.from_plan(request["start"]["program"]), request["start"]
    told, output = (folder / f"marks{place.process}").resolve(), folder.parent.resolve() / "output"
    told.mkdir()
    output.mkdir(exist_ok=True)
    asked = values(request, place, output, plan["paths"])
    reader, written = load_reader(request, place, grows=True), _Written(program)
    reader.begin()
    started = time.monotonic()
    code, left = _run(program, program.arguments(asked), _variables(request, place, told), written)
    ended = time.monotonic()
    reader.end()
    written.close()
    by_process = marks.read_files(told)
    known_by = marks.HOOK if by_process else marks.OUTPUT
    by_process = by_process or [written.marks.marks]
    epochs = [marks.epochs(each, started) for each in by_process]
    if not any(epochs):
        known_by = marks.WHOLE
    _require_success(code, left, written, epochs, request)
    reported = [mark for each in by_process for mark in each]
    _require_finite(reported)
    if known_by != marks.WHOLE:
        _require_epochs(program, request, epochs, written)
        _require_rows(program, request, place, epochs)
    return _measured(known_by, epochs, reported, started, ended, folder, place) | {
        "ranks": request["ranks"],
        "threads": request["knobs"]["threads"],
        "load": reader.found,
        "notes": written.notes,
    }


def values(
    request: Mapping, place: Place, output: Path, paths: Mapping[str, str]
) -> dict[str, object]:
    """Return what stands for each placeholder of the command of a rank.

    Parameters
    ----------
    output : a folder of the run.
    paths : of the dataset, by name.
    """
    rows, ranks = request["global_batch"], request["ranks"]
    address, port = place.extra_addresses[0].rsplit(":", 1)
    rank = place.ranks[0]
    of_node = len(place.ranks) * place.processes_per_node
    return {
        "rows": rows,
        "rows_of_rank": rows_of_rank(rows, ranks, rank),
        "epochs": request["epochs"],
        "seed": request["seed"],
        "ranks": ranks,
        "rank": rank,
        "ranks_of_node": of_node,
        "nodes": place.nodes,
        "node": place.node,
        "cores": len(place.cores),
        "address": address,
        "port": port,
        "output": output,
        **{f"{DATA}{name}": path for name, path in paths.items()},
    }


def rows_of_rank(rows: int, ranks: int, rank: int) -> int:
    """Return the rows of a step that a rank takes; the first ranks take what does not divide."""
    return rows // ranks + (rank < rows % ranks)


def _variables(request: Mapping, place: Place, told: Path) -> dict[str, str]:
    """Return the environment of the program of a rank."""
    program, knobs = Program.from_plan(request["start"]["program"]), request["knobs"]
    strategy = STRATEGIES[request["strategy"]]
    threads = knobs["threads"]["intra_op"] or len(place.cores)
    found = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ESCALA_") and name != "PYTHONPATH"
    }
    outside = [
        path
        for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if path and Path(path).resolve() != HOOK.parents[1]
    ]
    found |= strategy.process_variables(place, request["start"]["interface"])
    found |= {
        "ESCALA_STEPS": str(told),
        "PYTHONPATH": os.pathsep.join([str(HOOK), *outside]),
        # A launcher of its own divides the cores among several ranks.
        "OMP_NUM_THREADS": str(max(1, threads // len(place.ranks))),
    }
    if program.epoch_ends or program.step_ends:
        found["PYTHONUNBUFFERED"] = "1"
    return environment(program, found)


def _run(
    program: Program, command: list[str], given: Mapping[str, str], written: _Written
) -> tuple[int, int]:
    """Run a command to its end; return its exit code, and how many processes it left behind."""
    # What a program leaves behind becomes a child of this process, also under `setsid`.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    known = {child.pid for child in psutil.Process().children()}
    read, write = pty.openpty() if program.terminal else os.pipe()
    log.info("starts %s in %s", command, program.directory)
    try:
        child = children.start(command, given, write, program.directory)
    except OSError as error:
        os.close(read)
        os.close(write)
        raise Failed(
            f"{command[0]} cannot be started: {error.strerror}. Remedy: name a program on the "
            "PATH, or an interpreter: environment: {python: DIR/bin/python}"
        ) from None
    os.close(write)
    try:
        with _ended_with(child):
            _read_all(read, child, written)
    finally:
        os.close(read)
    code = child.wait()
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := _left(known)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return code, len(left)


@contextmanager
def _ended_with(child: subprocess.Popen) -> Iterator[None]:
    """End the program, and all that it started, if this process is told to end."""

    def end(number: int, _: object) -> None:
        children.stop([child])
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _read_all(source: int, child: subprocess.Popen, written: _Written) -> None:
    """Read the output of a program until it ends, or until nobody can write to it any more."""
    while True:
        ready, _, _ = select.select([source], [], [], _POLL_SECONDS)
        if not ready:
            if child.poll() is not None:
                return
            continue
        try:
            data = os.read(source, _READ_BYTES)
        except OSError:  # A terminal that nobody holds any more.
            return
        if not data:
            return
        written.add(data, time.monotonic())


def _left(known: set[int]) -> list[psutil.Process]:
    """Return the processes that are left of a program, after taking note of those that ended."""
    left = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, ChildProcessError):
            if process.pid in known:
                continue
            if process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)
            else:
                left.append(process)
    return left


class _Written:
    """What a program writes: its beginning and its end go to this process's output, a rank's log.

    Parameters
    ----------
    program : whose patterns are searched in each line.
    """

    def __init__(self, program: Program):
        self.marks = Searched(program.epoch_ends, program.step_ends)
        self._bytes, self._end, self._held = 0, deque(), 0

    def add(self, data: bytes, now: float) -> None:
        self.marks.feed(data.decode(errors="replace"), now)
        room = max(0, KEPT_BYTES - self._bytes)
        self._bytes += len(data)
        if room:
            sys.stdout.flush()
            os.write(1, data[:room])
        if data[room:]:
            self._end.append(data[room:])
            self._held += len(data) - room
            while self._held - len(self._end[0]) > KEPT_BYTES:
                self._held -= len(self._end.popleft())

    def close(self) -> None:
        lost = self._bytes - KEPT_BYTES - self._held
        if lost > 0:
            os.write(1, f"\n… {size(lost)} are left out …\n".encode())
        for data in self._end:
            os.write(1, data)
        os.write(1, b"\n")

    @property
    def notes(self) -> list[str]:
        """What is to be said of the output."""
        lost = self._bytes - KEPT_BYTES - self._held
        return [f"wrote {size(self._bytes)} of output, of which {size(lost)} are left out"] * (
            lost > 0
        )

    @property
    def last(self) -> str:
        """The last lines, as far as they are held."""
        if self._end:
            return b"".join(self._end)[-4096:].decode(errors="replace")
        sys.stdout.flush()
        with open("/proc/self/fd/1", "rb") as own:
            own.seek(0, os.SEEK_END)
            own.seek(max(0, own.tell() - 4096))
            return own.read().decode(errors="replace")


def _require_success(
    code: int, left: int, written: _Written, epochs: list[list[Epoch]], request: Mapping
) -> None:
    said = written.last
    if code:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        hint = ""
        if _ASKED.search(said):
            hint = ". It asks for input, and gets none here: give what it asks for as an argument"
        elif code in (126, 127):
            hint = ". The command was not found, or is no program"
        raise Failed(f"the program ended with {how}{hint}")
    if left:
        raise Failed(
            f"the program ended and left {left} of its processes running, which were ended. "
            "Remedy: let it wait for them; what runs in the background cannot be timed"
        )
    if _TRACEBACK in said and not any(epochs):
        raise Failed("the program ended with exit code 0 after an error. Remedy: let it end with 1")


def _require_finite(reported: list[Mark]) -> None:
    for mark in reported:
        for name, value in mark.values.items():
            if not math.isfinite(value):
                raise Diverged(f"the program reported {name} {value}")


def _require_epochs(
    program: Program, request: Mapping, epochs: list[list[Epoch]], written: _Written
) -> None:
    """Refuse fewer epochs than a command that names `{epochs}` was asked for."""
    done = max(map(len, epochs))
    if "epochs" in program.named and done < request["epochs"]:
        raise Failed(
            f"the program ended after {done} of {request['epochs']} epochs. Remedy: let it train "
            "as many as {epochs}, and mark or print the end of each"
        )


def _require_rows(
    program: Program, request: Mapping, place: Place, epochs: list[list[Epoch]]
) -> None:
    """Refuse steps of other numbers of rows than the command was given; the last may have fewer."""
    found = [
        int(max(filter(None, epoch.rows))) for each in epochs for epoch in each if any(epoch.rows)
    ]
    if not found or not {"rows", "rows_of_rank"} & program.named:
        return
    rows, ranks = request["global_batch"], request["ranks"]
    expected = rows_of_rank(rows, ranks, place.ranks[0])
    if max(found) != expected:
        hint = ""
        if max(found) == rows and ranks > 1:
            hint = ": each rank takes all of them. Remedy: give it {rows_of_rank}"
        raise Failed(
            f"the program was asked for {expected} rows a step of each rank ({rows} of all), and "
            f"took {max(found)}{hint or '. Remedy: let it take the rows that the command names'}"
        )


def _measured(
    known_by: str,
    epochs: list[list[Epoch]],
    reported: list[Mark],
    started: float,
    ended: float,
    folder: Path,
    place: Place,
) -> dict:
    """Return the measurements of this process in the form of `escala.training.train`."""
    if known_by == marks.WHOLE:
        whole = Epoch(started, ended, train_seconds=ended - started)
        epochs = [[whole]]
    several = [each for each in epochs if each]
    first = several[0]
    _write_steps(folder / f"rank{place.process}.steps.csv", several)
    # The first epoch holds what a framework compiles.
    skipped = 1 if len(first) > 1 else 0
    found = []
    for number in range(skipped, len(first)):
        same = [each[number] for each in several if number < len(each)]
        epoch = same[0]
        rows = [row for each in same for row in each.rows]
        found.append(
            {
                "epoch": number + 1,
                "steps": len(epoch.steps) or None,
                "rows": int(sum(rows)) if rows and None not in rows else None,
                "began": epoch.began,
                "train_seconds": max(each.train_seconds for each in same),
                "epoch_wall_seconds": epoch.ended - epoch.began,
                "validation_seconds": None,
                "loss": epoch.values.get("loss"),
                "accuracy": epoch.values.get("accuracy"),
                "validation_accuracy": epoch.values.get("val_accuracy"),
                "validation_loss": epoch.values.get("val_loss"),
                "scores": {},
            }
        )
    begun = first[0].began if first[0].marked else None
    return {
        "known_by": known_by,
        "epochs": found,
        "first_epoch": first[0].train_seconds if skipped else None,
        "first_step": first[0].steps[0] if first[0].steps else None,
        "scores": marks.scores(reported),
        "parameters": marks.told(reported, marks.PARAMETERS),
        "seconds": {
            "startup": None if begun is None else begun - started,
            "whole": ended - started,
        },
    }


def _write_steps(path: Path, epochs: list[list[Epoch]]) -> None:
    """Write the steps of the first process that told of some, without those of the first epoch."""
    first = epochs[0]
    with open(path, "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(STEP_COLUMNS)
        for number, epoch in enumerate(first, start=1):
            if number == 1 and len(first) > 1:
                continue
            for step, (seconds, rows) in enumerate(zip(epoch.steps, epoch.rows, strict=True), 1):
                writer.writerow((number, step, rows, 0.0, seconds, None, None))
