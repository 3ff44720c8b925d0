"""A session: measure the incomplete groups of a plan, one after the other, alone on the machine.

The runs of a group follow each other in the drawn order. If other work disturbed one of these runs,
the session waits for quiet and measures all runs of the group again, in the same order. The least
disturbed attempt gives the results of all runs of the group: two runs of different attempts never
form a match. Measurements stay, however the session ends. The next session continues with the
incomplete groups.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from escala.core import alone, console, interrupts, variables
from escala.core.console import progress, say
from escala.core.errors import InputError
from escala.core.files import read_json, write_json, write_text
from escala.core.load import Load
from escala.core.readable import with_noun
from escala.experiment import Run
from escala.measure import estimate, lost, missing, table
from escala.measure.missing import Stored
from escala.measure.plan import LOOKS, Group, Plan, PlannedRun, is_within, looks_until
from escala.record.disturbance import attempt, cores_of_others, disturbance, earlier, is_disturbed
from escala.record.schema import read_result
from escala.runtime import slurm

#: The variable for how often a disturbed group is measured again, and the default.
VARIABLE, TIMES = "ESCALA_MEASURE_DISTURBED", 2
#: The variable for how many seconds the session waits for quiet before it measures again, and the
#: default.
WAIT_VARIABLE, WAIT_SECONDS = "ESCALA_WAIT_FOR_QUIET", 60
#: The folder, inside the folder of a run, in which the run is measured again.
_FOLDER = "again"
#: If minutes are over, a session goes on to its first look if that takes at most so many times as
#: long.
_PATIENCE = 1.5
#: A machine is quiet after this number of stretches, of this many seconds, without other work.
_STRETCHES, _STRETCH_SECONDS = 3, 1.0


def times_again() -> int:
    """Return how many times a disturbed group is measured again.

    Raises
    ------
    InputError : the value of the environment variable is no number.
    """
    return _number(VARIABLE, TIMES, "times")


def _number(variable: str, default: int, unit: str) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal():
        remedy = f"set it to 0 or more, or unset it ({default})"
        raise InputError(variable, text, f"is not a number of {unit}", remedy)
    return int(text)


def is_left(run: Mapping[str, Any]) -> bool:
    """Return whether a measurement was disturbed and the run may be measured again."""
    timing = run["instrument"] is None and run["status"] == "ok"
    return timing and is_disturbed(run) and len(earlier(run)) < times_again()


def measure_again(group: Mapping[Path, Callable[[Path], Any]]) -> bool:
    """Measure all runs of a group again; return whether the new measurements replaced the old ones.

    The new measurements replace the old ones if all runs ended ok and were disturbed less: other
    work disturbed fewer runs, or an equal number of runs by fewer cores. The times of the runs do
    not decide. The resulting measurement lists all other measurements as `earlier`. Until all runs
    are measured, and after an interrupt, the old measurements stay.

    Parameters
    ----------
    group : by the `run.json` of each run, in order, a function. It measures the run and writes the
        file of its argument.
    """
    repeated = {output: output.parent / _FOLDER / output.name for output in group}
    try:
        for output, measure in group.items():
            shutil.rmtree(output.parent / _FOLDER, ignore_errors=True)
            measure(repeated[output])
        before, after = (
            [read_json(path) for path in paths] for paths in (repeated, repeated.values())
        )
        stands = all(run["status"] == "ok" for run in after) and _weight(after) < _weight(before)
        for (output, measured), old, new in zip(repeated.items(), before, after, strict=True):
            standing_run, other_run = (new, old) if stands else (old, new)
            attempts = [*earlier(old), attempt(other_run)]
            attempts.sort(key=lambda other: other["started"])
            standing_run["disturbance"]["earlier"] = attempts
            if stands:
                _move(measured.parent, output)
            session_file = output.parent / "sessions" / f"{standing_run['session']}.json"
            write_json(session_file, standing_run)
            write_json(output, standing_run)
    finally:
        for path in repeated.values():
            shutil.rmtree(path.parent, ignore_errors=True)
    return stands


def _weight(attempt: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Return how many runs of an attempt other work disturbed, and by how many cores."""
    return sum(map(is_disturbed, attempt)), sum(cores_of_others(run) or 0.0 for run in attempt)


def _move(folder: Path, output: Path) -> None:
    """Move the files of a repeated run beside its `run.json`, except `run.json` and `sessions`."""
    shutil.rmtree(folder / "sessions", ignore_errors=True)
    for path in sorted(folder.iterdir()):
        if path.name != output.name:
            target = output.with_name(path.name)
            if target.is_dir():
                shutil.rmtree(target)
            path.replace(target)


def wait_for_quiet() -> bool:
    """Wait until no other work uses this machine; return whether it became quiet in time.

    Raises
    ------
    InputError : `ESCALA_WAIT_FOR_QUIET` is no number. With 0 the session does not wait.
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
        now = disturbance([{"boot": host, "host": host, "load": load.sums}])
        quiet = 0 if now["disturbed"] else quiet + 1
        passed = time.monotonic() - began
        if quiet == _STRETCHES:
            return True
        if passed > bound:
            say(f"the machine did not become quiet in {passed:.0f} s: {now['reason']}")
            return False
        waiting(now["reason"] or "no other work now", passed, bound)
    return True


@dataclass
class Session:
    """A session of measuring: its plan, and the functions that it calls.

    Attributes
    ----------
    measure_run : takes a run and the path of a `run.json`. It measures the run and writes the file,
        even if the run fails.
    write_lost : writes the `run.json` of a run that ended with its session (`escala.measure.lost`).
    lack_of_time : returns why runs would not end in the remaining time; None if they may end. It
        takes the seconds that each run took before, None if unknown, and whether this session has
        measured a run.
    remedy : returns the remedy for runs that were not begun.
    look : is called if the plan is `sequential`, after each number of repeats at which the session
        looks. It takes that number, the runs of these repeats, and why the session stops in any
        case, if it does. It returns why the session stops; None if it goes on.
    tell : is called at the start and after each group. It takes the plan and the runs to measure.
        The plan is `sequential` until the session stops.
    clock : returns seconds.
    job : the job of the session, if any. Its nodes may differ from the nodes of an earlier job. So
        if a run of a group must be measured, the whole group is measured.
    """

    plan: Plan
    measure_run: Callable[[PlannedRun, Path], Any]
    write_lost: lost.Record
    lack_of_time: Callable[[Sequence[float | None], bool], str | None] = (
        lambda seconds, has_measured: None
    )
    remedy: Callable[[], str] = lambda: "the same call goes on"
    look: Callable[[int, list[Run], str | None], str | None] = lambda repeats, runs, why: why
    tell: Callable[[Plan, list[PlannedRun]], None] = lambda plan, left: None
    job: slurm.Job | None = None
    clock: Callable[[], float] = time.monotonic
    #: The last repeat, once it is known; the last look; when the first run began; and the repeats
    #: that were complete before.
    _last: int | None = field(default=None, init=False)
    _looked: int = field(default=0, init=False)
    _began: float | None = field(default=None, init=False)
    _complete_before: int = field(default=0, init=False)
    _rows: dict[str, table.Row] = field(default_factory=dict, init=False)
    _measured: int = field(default=0, init=False)

    def measure(self) -> int:
        """Measure the incomplete groups, write the table, and return the exit code.

        The code is `NO_TIME` if there was no time for a group. Otherwise it is `DONE`, even if runs
        failed.

        Raises
        ------
        InputError : the input of a run cannot be used, the job has lost a node of a run, or another
            job measures a run.
        SystemExit : a signal ended the session. The run in progress then has no `run.json`.
        """
        times_again()  # A wrong number is refused before anything is measured.
        lost.record(self.plan.runs, self.write_lost)
        lost.require_ended(self.plan.runs)
        present = missing.Present(variables.describe(), self.plan.since)
        waiting = {
            group: runs
            for group in self.plan.groups
            if (runs := missing.runs_left(group, present, whole=self.job is not None))
        }
        self._rows = table.rows_of(self.plan.runs)
        try:
            self._look(waiting)
            self._tell(waiting)
            for group in list(waiting):
                if self._last is None or is_within(group, self._last):
                    if not self._complete(group, present):
                        return console.NO_TIME
                    del waiting[group]
                    self._write_table()
                    self._look(waiting)
                    self._tell(waiting)
        finally:
            self._write_table()
        return console.DONE

    def _look(self, waiting: Mapping[Group, list[PlannedRun]]) -> None:
        """Look at the repeats that are complete, if it is time, and say whether that was the last.

        No repeat begins when the minutes of the plan are over; one that has begun is completed. The
        first look may take `_PATIENCE` times as long: without it there is no verdict.
        """
        if (sequential := self.plan.sequential) is None or self._last is not None:
            return
        most, minutes = sequential["at_most"], sequential["minutes"]
        timed = [group for group in self.plan.groups if group[0].run.instrument is None]
        left = {group[0].run.repeat for group in timed if group in waiting}
        begun = {group[0].run.repeat for group in timed if group not in waiting}
        complete, why = min(left, default=most + 1) - 1, None
        if self._began is None:
            self._complete_before = complete
        if complete == most:
            why = f"{most} are the most that it may measure"
        elif complete and complete + 1 not in begun and self._is_over(minutes, complete):
            why = f"{minutes:g} min were over"
        due = {number for number in looks_until(most) if self._looked < number <= complete}
        for number in sorted(due | {complete} if why else due):
            runs = [planned.run for planned in self.plan.within(number).runs]
            with variables.drop_additions():
                reason = self.look(number, runs, why if number == complete else None)
            self._looked = number
            if reason:
                self._last = number
                say(f"stopped after {with_noun(number, 'repeat')}, because {reason}")
                return

    def _is_over(self, minutes: float | None, complete: int) -> bool:
        """Return whether the minutes of the plan are over, after some complete repeats.

        None are never over, and begin with the first run.
        """
        if minutes is None or self._began is None:
            return False
        passed, missing_repeats = self.clock() - self._began, LOOKS[0] - complete
        first_look = passed * (1 + missing_repeats / max(1, complete - self._complete_before))
        is_near = missing_repeats > 0 and first_look <= _PATIENCE * 60 * minutes
        return passed > 60 * minutes and not is_near

    def _complete(self, group: Group, present: missing.Present) -> bool:
        """Serve or measure the incomplete runs of a group; return whether there was enough time."""
        waiting = self._serve(group, present)
        runs = [stored.planned for stored in waiting]
        if runs and (why := self._lack_of_time(runs)):
            files = [planned.file for planned in self._current_plan().runs]
            done = f"{sum(file in self._rows for file in files)} of {len(files)} runs measured"
            say(f"{runs[0].file}: not begun: {why}: {done}; {self.remedy()}.")
            return False
        try:
            if runs:
                self._measure_group(runs)
        finally:
            for stored in group:
                self._rows.pop(stored.file, None)
            self._rows |= table.rows_of(group)
        for stored in waiting:
            stored.keep()
        return True

    def _current_plan(self) -> Plan:
        """Return the plan without the repeats that are known not to be needed."""
        if self._last is None:
            return self.plan
        return replace(self.plan.within(self._last), sequential=None)

    def _tell(self, waiting: Mapping[Group, list[PlannedRun]]) -> None:
        plan = self._current_plan()
        left = [planned for group in plan.groups for planned in waiting.get(group, ())]
        with variables.drop_additions():
            self.tell(plan, left)

    def _serve(self, group: Group, present: missing.Present) -> list[Stored]:
        """Serve the runs whose matches are in the store, too; return the runs to measure."""
        find_left = partial(missing.runs_left, group, present, whole=self.job is not None)
        stored = {planned.file: Stored(planned) for planned in find_left()}
        for run in stored.values():
            run.copy_sessions()
        # With `since`, no earlier measurement counts.
        sessions = {} if self.plan.since else {file: run.sessions for file, run in stored.items()}
        sessions = {file: names for file, names in sessions.items() if names}
        without_match = {run.file for run in missing.runs_left(group, present, sessions)}
        for planned in missing.find_missing(group, present):
            file = planned.file
            if file in sessions.keys() - without_match and stored[file].serve():
                print(f"{file}: served from the store", flush=True)
        return [stored[planned.file] for planned in find_left()]

    def _lack_of_time(self, runs: Sequence[PlannedRun]) -> str | None:
        before = estimate.medians(planned.run for planned in runs)
        return self.lack_of_time([before(planned.run) for planned in runs], self._measured > 0)

    def _measure_group(self, runs: Sequence[PlannedRun]) -> None:
        """Measure a group. Repeat all its timing runs while other work disturbs a run."""
        first = runs[0].run
        with alone.hold({"experiment": first.experiment, "run": first.folder}):
            for planned in runs:
                self._measure(planned, Path(planned.file))
            measures = {
                Path(planned.file): partial(self._measure, planned)
                for planned in runs
                if not planned.run.instrument and read_result(Path(planned.file))["status"] == "ok"
            }
            while any(is_left(read_result(file)) for file in measures):
                say("other work disturbed this repeat")
                if why := self._lack_of_time(runs):
                    say(f"it is not measured again: {why}")
                    return
                if not wait_for_quiet():
                    return
                say(f"all of it is measured again: {with_noun(len(measures), 'run')}")
                measure_again(measures)

    def _measure(self, planned: PlannedRun, output: Path) -> None:
        """Measure a run, with a line after it."""
        interrupts.end_if_received()
        if self._began is None:
            self._began = self.clock()
        with lost.mark_run(planned, self.job):
            self.measure_run(planned, output)
        self._measured += 1
        result = read_result(output)
        reason = f" ({result['reason']})" if result["reason"] else ""
        line = f"{planned.file}: {result['status']}{reason}"
        if result["status"] == "ok":
            print(line, flush=True)
        else:
            say(line)

    def _write_table(self) -> None:
        if self.plan.table:
            write_text(self.plan.table, table.text(self._current_plan(), self._rows))
