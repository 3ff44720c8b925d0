"""Measure runs again that other work disturbed.

On one machine the runs of a call follow each other, and those of a repeat that were disturbed are
measured again after the last of them, by its job: by then the disturbance may be over. Where jobs
do not follow each other, as on a cluster, the job of a run measures it again at once, within its
time limit.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from escala.core.environment import session
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.record.disturbance import attempt, earlier, is_disturbed

#: Environment variable: how many times a disturbed run is measured again, and the default.
VARIABLE, TIMES = "ESCALA_MEASURE_DISTURBED", 2
#: What a run that is to be measured again leaves alongside its run.json.
REQUEST = "again.json"
#: The folder in a run's folder where it is measured again.
_FOLDER = "again"

Measure = Callable[[dict, Path, Path, float], Any]


def times() -> int:
    """Return how many times a disturbed run is measured again.

    Raises
    ------
    InputError : the environment variable is no number.
    """
    text = os.environ.get(VARIABLE) or str(TIMES)
    if not text.isdecimal():
        raise InputError(
            VARIABLE,
            text,
            "is not a number of times",
            f"set it to 0 or more, or unset it ({TIMES})",
        )
    return int(text)


def is_left(run: Mapping[str, Any]) -> bool:
    """Return whether a measurement was disturbed and may be replaced by another one."""
    timing = run["instrument"] is None and run["status"] == "ok"
    return timing and is_disturbed(run) and len(earlier(run)) < times()


def settled(
    measure: Measure, request: dict, turn: dict, data: Path, output: Path, seconds: float
) -> bool:
    """See to a run that was just measured; return whether its measurement may be stored.

    If other work disturbed it, it is left to the end of its repeat, or measured again at once where
    nothing tells which run ends that.

    Parameters
    ----------
    measure : `escala.record.run.measure`.
    request, turn, data, output, seconds : of the run, with its time limit. `repeat` of its turn is
        None if nothing tells which run ends the repeat.
    """
    run = read_json(output)
    if not is_left(run):
        if is_disturbed(run):
            attempts = len(earlier(run))
            _say(output, run, f"as in {attempts} earlier attempts" if attempts else "recorded")
    elif turn["repeat"] is not None:
        asked = {"request": request, "turn": turn, "data": str(data), "seconds": seconds}
        write_json(output.with_name(REQUEST), asked | {"session": session()})
        _say(output, run, f"it will be measured again at the end of repeat {run['repeat']}")
        return False
    else:
        _at_once(measure, request, data, output, seconds - run["wall_seconds"])
    return run["status"] == "ok"


def request_of(output: Path) -> dict | None:
    """Return what a run of this session left that is to be measured again, or None."""
    file = output.with_name(REQUEST)
    asked = read_json(file) if file.exists() else None
    return asked if asked and asked["session"] == session() else None


def _at_once(measure: Measure, request: dict, data: Path, output: Path, seconds: float) -> None:
    """Measure a run again for as long as it is disturbed and `seconds` leave room for it."""
    end = time.monotonic() + seconds
    while is_left(run := read_json(output)):
        left = end - time.monotonic()
        if run["wall_seconds"] > left:
            _say(output, run, "its time limit leaves no room to measure it again")
            return
        _say(output, run, "it is measured again at once")
        measured_again(measure, request, data, output, left)


def measured_again(
    measure: Measure, request: dict, data: Path, output: Path, seconds: float
) -> None:
    """Measure a run again, and replace its measurement unless the new one did not end ok.

    The earlier measurement stands until then, and is recorded in the new one.
    """
    folder, kept = output.parent / _FOLDER, read_json(output)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        measure(request, data, folder / output.name, seconds)
        found = read_json(folder / output.name)
        if found["status"] == "ok":
            found["disturbance"]["earlier"] = [*kept["disturbance"]["earlier"], attempt(kept)]
            _replace(folder, output, found)
        else:
            kept["disturbance"]["earlier"].append(attempt(found))
            _write(output, kept)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace(folder: Path, output: Path, run: dict) -> None:
    """Move what a run left in a folder alongside its run.json, and write that last."""
    shutil.rmtree(folder / "sessions", ignore_errors=True)
    for path in sorted(folder.iterdir()):
        if path.name != output.name:
            target = output.with_name(path.name)
            if target.is_dir():
                shutil.rmtree(target)
            path.replace(target)
    _write(output, run)


def _write(output: Path, run: dict) -> None:
    write_json(output.parent / "sessions" / f"{run['session']}.json", run)
    write_json(output, run)


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
