"""Measure a repeat again of which other work disturbed a run.

On one machine the runs of a call follow each other. After the last run of a repeat its job waits
until the machine is quiet, and measures all runs of the repeat again, in the same order. Of the
attempts at a repeat, the one that was disturbed least stands for all of its runs: two runs of
different attempts never form a match. Where jobs do not follow each other, as on a cluster, each
run has an attempt of its own: its job measures it again at once, within its time limit.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from escala.core import interrupts
from escala.core.environment import session
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.core.load import Load
from escala.core.progress import progress, say
from escala.record.disturbance import attempt, disturbance, earlier, is_disturbed, taken_cores

#: Environment variable: how many times a disturbed repeat is measured again, and the default.
VARIABLE, TIMES = "ESCALA_MEASURE_DISTURBED", 2
#: Environment variable: for how many seconds to wait for quiet before that, and the default.
WAIT_VARIABLE, WAIT_SECONDS = "ESCALA_WAIT_FOR_QUIET", 60
#: What a run leaves alongside its run.json until its repeat has ended.
REQUEST = "again.json"
#: The folder in a run's folder where it is measured again.
_FOLDER = "again"
#: A machine is quiet after so many stretches of so many seconds without other work.
_STRETCHES, _STRETCH_SECONDS = 3, 1.0

#: Measures by a request, the folder of the data, the run.json to write, and the time limit.
Measure = Callable[[dict, Path, Path, float], Any]


def times() -> int:
    """Return how many times a disturbed repeat is measured again.

    Raises
    ------
    InputError : the environment variable is no number.
    """
    return _number(VARIABLE, TIMES, "times")


def _number(variable: str, default: int, unit: str) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal():
        remedy = f"set it to 0 or more, or unset it ({default})"
        raise InputError(variable, text, f"is not a number of {unit}", remedy)
    return int(text)


def is_left(run: Mapping[str, Any]) -> bool:
    """Return whether a measurement was disturbed and may be replaced by another one."""
    timing = run["instrument"] is None and run["status"] == "ok"
    return timing and is_disturbed(run) and len(earlier(run)) < times()


def settle(
    measure: Measure, request: dict, turn: dict, data: Path, output: Path, seconds: float
) -> bool:
    """See to a run that was just measured; return whether its measurement may be stored.

    A timing run is left to the end of its repeat. Where nothing tells which run ends that, a
    disturbed one is measured again at once.

    Parameters
    ----------
    measure : `escala.record.run.measure`.
    request, turn, data, output, seconds : of the run, with its time limit. `repeat` of its turn is
        None if nothing tells which run ends the repeat.
    """
    run = read_json(output)
    if run["status"] != "ok":
        return False
    if turn["repeat"] is not None and run["instrument"] is None and times():
        asked = {"request": request, "turn": turn, "data": str(data), "seconds": seconds}
        write_json(output.with_name(REQUEST), asked | {"session": session()})
        if is_left(run):
            _say(output, run, f"repeat {run['repeat']} will be measured again at its end")
            return False
    elif is_left(run):
        _measure_at_once(measure, request, data, output, seconds - run["wall_seconds"])
    elif is_disturbed(run):
        _say(output, run, "recorded")
    return True


def request_of(output: Path) -> dict | None:
    """Return what a run of this session left to be measured again by, or None."""
    file = output.with_name(REQUEST)
    asked = read_json(file) if file.exists() else None
    return asked if asked and asked["session"] == session() else None


def _measure_at_once(
    measure: Measure, request: dict, data: Path, output: Path, seconds: float
) -> None:
    """Measure a run again for as long as it is disturbed and `seconds` leave room for it."""
    end = time.monotonic() + seconds
    while is_left(run := read_json(output)):
        left = end - time.monotonic()
        if run["wall_seconds"] > left:
            _say(output, run, "its time limit leaves no room to measure it again")
            return
        _say(output, run, "it is measured again at once")
        measure_again({output: lambda to, left=left: measure(request, data, to, left)})


def measure_again(repeat: Mapping[Path, Callable[[Path], Any]]) -> bool:
    """Measure all runs of a repeat again; return whether these measurements replaced the others.

    They replace them if all ended ok and they were disturbed less: fewer of them, or as many by
    fewer cores. The times of the runs do not decide. What does not stand is recorded in what does.
    Until all are measured, and if that is interrupted, the earlier measurements stand.

    Parameters
    ----------
    repeat : by the run.json of each run, in order, what measures the run and writes the file that
        it is given.
    """
    again = {output: output.parent / _FOLDER / output.name for output in repeat}
    try:
        for output, measure in repeat.items():
            shutil.rmtree(output.parent / _FOLDER, ignore_errors=True)
            measure(again[output])
        before, after = ([read_json(path) for path in each] for each in (again, again.values()))
        stands = all(run["status"] == "ok" for run in after) and _weight(after) < _weight(before)
        for (output, measured), old, new in zip(again.items(), before, after, strict=True):
            kept, left = (new, old) if stands else (old, new)
            others = [*earlier(old), attempt(left)]
            kept["disturbance"]["earlier"] = sorted(others, key=lambda each: each["started"])
            if stands:
                _move(measured.parent, output)
            write_json(output.parent / "sessions" / f"{kept['session']}.json", kept)
            write_json(output, kept)
    finally:
        for path in again.values():
            shutil.rmtree(path.parent, ignore_errors=True)
    return stands


def _weight(attempt: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Return how much other work disturbed an attempt: in how many runs, and by how many cores."""
    return sum(map(is_disturbed, attempt)), sum(taken_cores(run) or 0.0 for run in attempt)


def _move(folder: Path, output: Path) -> None:
    """Move what a run left in a folder alongside its run.json, all but that and older sessions."""
    shutil.rmtree(folder / "sessions", ignore_errors=True)
    for path in sorted(folder.iterdir()):
        if path.name != output.name:
            target = output.with_name(path.name)
            if target.is_dir():
                shutil.rmtree(target)
            path.replace(target)


def wait_for_quiet() -> bool:
    """Wait until no other work uses this machine, with progress; return whether that came.

    Raises
    ------
    InputError : `ESCALA_WAIT_FOR_QUIET` is no number. With 0 it does not wait.
    """
    bound = _number(WAIT_VARIABLE, WAIT_SECONDS, "seconds")
    began, quiet = time.monotonic(), 0
    waiting = progress("escala: waiting for quiet: %s; %.0f s of at most %d s")
    while bound:
        load = Load([os.getpid()])
        load.begin()
        time.sleep(_STRETCH_SECONDS)
        load.end()
        interrupts.end_if_received()
        host = socket.gethostname()
        found = disturbance([{"boot": host, "host": host, "load": load.found}])
        quiet = 0 if found["disturbed"] else quiet + 1
        passed = time.monotonic() - began
        if quiet == _STRETCHES:
            return True
        if passed > bound:
            say(f"the machine did not become quiet in {passed:.0f} s: {found['reason']}")
            return False
        waiting(found["reason"] or "no other work now", passed, bound)
    return True


def _say(output: Path, run: Mapping[str, Any], text: str) -> None:
    """Print that a run was disturbed, and what comes of it."""
    reason = run["disturbance"]["reason"]
    print(f"{output}: disturbed: {reason}; {text}", file=sys.stderr, flush=True)


def repeat_of(run: Any) -> tuple:
    """Return what the timing runs (`escala.experiment.Run`) of one repeat have in common."""
    from escala.experiment.runs import is_of_ladder

    ladder = run.series if is_of_ladder(run) else None
    return run.experiment, run.dataset, run.workload, ladder, run.repeat


def in_same_repeat(one: Any, other: Any) -> bool:
    """Return whether two runs are measured together; a run of a probe is so with itself only."""
    if one.instrument or other.instrument:
        return one == other
    return repeat_of(one) == repeat_of(other)


def by_last_run(runs: Sequence[Any], position: Callable[[Any], float]) -> dict[str, list[str]]:
    """Return the runs of each repeat, in the order of execution, by the run that ends it.

    The two sides of a ladder's rung form a separate repeat.

    Parameters
    ----------
    runs : timing runs (`escala.experiment.Run`).
    position : returns the place of a run in the order of execution.
    """
    repeats: dict[tuple, list] = {}
    for run in runs:
        repeats.setdefault(repeat_of(run), []).append(run)
    ordered = [[run.file for run in sorted(each, key=position)] for each in repeats.values()]
    return {files[-1]: files for files in ordered}
