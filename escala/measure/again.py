"""Measure a group again of which other work disturbed a run.

Once the machine is quiet, all runs of the group are measured again, in the same order. Of the
attempts, the one that was disturbed least stands for all of its runs: two runs of different
attempts never form a match.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from escala.core import interrupts
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.core.load import Load
from escala.core.progress import progress, say
from escala.record.disturbance import attempt, disturbance, earlier, is_disturbed, taken_cores

#: Environment variable: how many times a disturbed group is measured again, and the default.
VARIABLE, TIMES = "ESCALA_MEASURE_DISTURBED", 2
#: Environment variable: for how many seconds to wait for quiet before that, and the default.
WAIT_VARIABLE, WAIT_SECONDS = "ESCALA_WAIT_FOR_QUIET", 60
#: The folder in a run's folder where it is measured again.
_FOLDER = "again"
#: A machine is quiet after so many stretches of so many seconds without other work.
_STRETCHES, _STRETCH_SECONDS = 3, 1.0


def times() -> int:
    """Return how many times a disturbed group is measured again.

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


def measure_again(group: Mapping[Path, Callable[[Path], Any]]) -> bool:
    """Measure all runs of a group again; return whether these measurements replaced the others.

    They replace them if all ended ok and they were disturbed less: fewer of them, or as many by
    fewer cores. The times of the runs do not decide. What does not stand is recorded in what does.
    Until all are measured, and if that is interrupted, the earlier measurements stand.

    Parameters
    ----------
    group : by the run.json of each run, in order, what measures the run and writes the file that
        it is given.
    """
    again = {output: output.parent / _FOLDER / output.name for output in group}
    try:
        for output, measure in group.items():
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
