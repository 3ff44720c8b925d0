"""A session: measure what is left of a plan, group after group, on a machine of its own.

The runs of a group follow each other in the drawn order. Where other work disturbed one of them,
the session waits for quiet and measures the group again whole (`escala.measure.again`): two runs of
different attempts never form a match. What was measured stays, however the session ends, and the
next one goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from escala.core import alone, exits, interrupts, variables
from escala.core.files import write_text
from escala.core.progress import say
from escala.core.readable import counted
from escala.measure import again, estimate, lost, standing, table
from escala.measure.plan import Group, Plan, PlannedRun, is_within, told
from escala.measure.stored import Stored
from escala.record.schema import read_result
from escala.runtime import allocation


@dataclass
class Session:
    """A session of measuring: its plan, and the functions that it calls.

    Attributes
    ----------
    measure_run : measures a run, and writes the `run.json` that it is given, whatever happens to
        the run.
    write_lost : writes the `run.json` of a run that ended with its session (`escala.measure.lost`).
    late : returns why runs that took these seconds before would not end in the time that there is,
        None if they may. It is also told whether this session has measured others. None in place
        of seconds is unknown.
    remedy : returns what to do about runs that were not begun.
    decide : returns the number of repeats that the runs of the pilot ask for, by their files.
    tell : is called at the begin and after each group, with the plan as far as it is asked for and
        the runs that are left. The plan has its pilot as long as that may ask for more.
    job : that the session is inside, if any. Its nodes may be others than those of earlier ones,
        so all runs of a group are measured if one is.
    """

    plan: Plan
    measure_run: Callable[[PlannedRun, Path], Any]
    write_lost: lost.Record
    late: Callable[[Sequence[float | None], bool], str | None] = lambda seconds, has_measured: None
    remedy: Callable[[], str] = lambda: "the same call goes on"
    decide: Callable[[list[Path]], int] = lambda files: 1
    tell: Callable[[Plan, list[PlannedRun]], None] = lambda plan, left: None
    job: allocation.Job | None = None
    _repeats: int | None = field(default=None, init=False)
    _rows: dict[str, table.Row] = field(default_factory=dict, init=False)
    _measured: int = field(default=0, init=False)

    def measure(self) -> int:
        """Measure what is left, write the table, and return the exit code.

        It is `NO_TIME` if there was no time for a group, and `DONE` also if runs failed.

        Raises
        ------
        InputError : the input of a run cannot be used, its job has lost a node of it, or another
            job measures it.
        SystemExit : a signal ended the session. The run in progress then has no `run.json`.
        """
        again.times()  # It may be no number.
        lost.record(self.plan.runs, self.write_lost)
        lost.require_ended(self.plan.runs)
        present = standing.Present(variables.describe(), self.plan.since)
        waiting = {
            group: runs
            for group in self.plan.groups
            if (runs := standing.left(group, present, whole=self.job is not None))
        }
        self._rows = table.rows_of(self.plan)
        try:
            self._tell(waiting)
            for group in list(waiting):
                del waiting[group]
                if self._is_asked(group):
                    if not self._complete(group, present):
                        return exits.NO_TIME
                    self._write_table()
                    self._tell(waiting)
            if self.plan.pilot:
                self._decide()
        finally:
            self._write_table()
        return exits.DONE

    def _is_asked(self, group: Group) -> bool:
        """Return whether a group is of a repeat that the pilot asks for, or one of its own."""
        pilot = self.plan.pilot
        if pilot is None or is_within(group, pilot["repeats"]):
            return True
        return is_within(group, self._decide())

    def _decide(self) -> int:
        """Return the number of repeats; all runs of the pilot are complete by now."""
        if self._repeats is None:
            runs = (each.run for each in self.plan.within(self.plan.pilot["repeats"]).runs)
            files = [Path(run.file) for run in runs if run.instrument is run.series is None]
            with variables.kept():
                self._repeats = self.decide(files)
        return self._repeats

    def _complete(self, group: Group, present: standing.Present) -> bool:
        """Serve or measure what is left of a group; return whether there was time for it."""
        waiting = self._serve(group, present)
        runs = [each.planned for each in waiting]
        if runs and (why := self._late(runs)):
            say(f"{runs[0].file}: not begun: {why}: {self._progress()}; {self.remedy()}.")
            return False
        try:
            if runs:
                self._measure_group(runs)
        finally:
            self._note(group)
        for each in waiting:
            each.keep()
        return True

    def _asked(self) -> Plan:
        """Return the plan with the repeats that are known to be needed so far."""
        if not self.plan.pilot:
            return self.plan
        if self._repeats is None:
            return self.plan.within(self.plan.pilot["repeats"])
        return replace(self.plan.within(self._repeats), pilot=None)

    def _tell(self, waiting: Mapping[Group, list[PlannedRun]]) -> None:
        plan = self._asked()
        left = [each for group in plan.groups for each in waiting.get(group, ())]
        with variables.kept():
            self.tell(plan, left)

    def _progress(self) -> str:
        files = [each.file for each in self._asked().runs]
        return f"{sum(file in self._rows for file in files)} of {len(files)} runs measured"

    def _serve(self, group: Group, present: standing.Present) -> list[Stored]:
        """Serve what the store holds of a group with its matches; return the runs to measure."""
        left = partial(standing.left, group, present, whole=self.job is not None)
        stored = {each.file: Stored(each) for each in left()}
        for each in stored.values():
            each.copy_sessions()
        held = {file: each.sessions for file, each in stored.items() if each.sessions}
        if self.plan.since:  # What was measured before does not count.
            held = {}
        served = held.keys() - {each.file for each in standing.left(group, present, held)}
        for each in standing.missing(group, present):
            if each.file in served and stored[each.file].serve():
                print(f"{each.file}: served from the store", flush=True)
        return [stored[each.file] for each in left()]

    def _late(self, runs: Sequence[PlannedRun]) -> str | None:
        before = estimate.medians(each.run for each in runs)
        return self.late([before(each.run) for each in runs], self._measured > 0)

    def _measure_group(self, runs: Sequence[PlannedRun]) -> None:
        """Measure runs of a group, and again as long as other work disturbed a timing run."""
        first = runs[0].run
        with alone.hold({"experiment": first.experiment, "run": first.folder}):
            for each in runs:
                self._measure(each, Path(each.file))
            measures = {
                Path(each.file): partial(self._measure, each)
                for each in runs
                if not each.run.instrument and read_result(Path(each.file))["status"] == "ok"
            }
            while any(again.is_left(read_result(file)) for file in measures):
                say("other work disturbed this repeat")
                if why := self._late(runs):
                    say(f"it is not measured again: {why}")
                    return
                if not again.wait_for_quiet():
                    return
                say(f"all of it is measured again: {counted(len(measures), 'run')}")
                again.measure_again(measures)

    def _measure(self, planned: PlannedRun, output: Path) -> None:
        """Measure a run, with a line before and after it."""
        interrupts.end_if_received()
        print(told(planned.run), flush=True)
        with lost.marked(planned, self.job):
            self.measure_run(planned, output)
        self._measured += 1
        found = read_result(output)
        reason = f" ({found['reason']})" if found["reason"] else ""
        print(f"{planned.file}: {found['status']}{reason}", flush=True)

    def _note(self, group: Group) -> None:
        """Take what the table has of a group from its files."""
        for each in group:
            self._rows.pop(each.file, None)
            if row := table.row_of(each):
                self._rows[each.file] = row

    def _write_table(self) -> None:
        if self.plan.table:
            write_text(self.plan.table, table.text(self._asked(), self._rows))
