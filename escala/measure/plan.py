"""The plan of a session: frozen values, which the process that reads the experiment writes.

A *group* is what a repeat measures together, on one set of nodes: all timing runs of a repeat of a
dataset and workload, the two sides of a ladder's rung, or the runs of a probe that are compared. A
run and its references are always of one group.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from escala.core.files import read_format, read_json
from escala.experiment import Experiment, Run
from escala.experiment.expand import turns
from escala.experiment.runs import NAMES, Declared, Reference, is_of_ladder
from escala.probes import PROBES
from escala.runtime.layout import with_layout
from escala.strategies import STRATEGIES
from escala.workloads import WORKLOADS, program

#: Of a plan. Others are refused.
FORMAT = 1
#: The folder of all plans. Each has one of its own, because Snakemake remembers what a folder held.
PLANS = Path(".escala/plans")


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A run to measure, with all that measuring it takes.

    Attributes
    ----------
    request : all that determines its result, besides its data and the code.
    data : folder of the split that it trains on.
    seconds : its time limit.
    turn : its place in its repeat (`escala.experiment.expand.turns`); None for a run of a probe.
    references : files of the runs that its ratios are formed with, all of its group.
    place : its place among the runs as the experiment lists them.
    run : in a plan that was read from a file, its `declared` holds only what the request tells.
    """

    request: Mapping[str, Any]
    data: str
    seconds: float
    turn: Mapping[str, int] | None
    references: tuple[str, ...]
    place: int
    run: Run

    @property
    def file(self) -> str:
        """Its `run.json`."""
        return self.run.file


Group = tuple[PlannedRun, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """The runs of a session, in the order of execution.

    Attributes
    ----------
    experiment : its name.
    references : of its configurations, the main one first.
    pilot : `half_width`, `repeats` and `at_most` of the experiment, if the session decides after
        its pilot how many repeats it measures. The plan then has the most that it may decide on.
    groups : in the order of execution, the runs of each in their drawn order.
    table : the table of measurements to write (`escala.measure.table`); None for some runs.
    since : the first session whose measurements count; empty: all do.
    call : the session of the call that made the plan because there is something to do; else empty.
    """

    experiment: str
    references: tuple[Reference, ...]
    pilot: Mapping[str, Any] | None
    groups: tuple[Group, ...]
    table: str | None = None
    since: str = ""
    call: str = ""

    @property
    def runs(self) -> list[PlannedRun]:
        return [planned for group in self.groups for planned in group]

    def within(self, repeats: int) -> Plan:
        """Return this plan without the timing runs of further repeats; probes count their own."""
        return replace(
            self, groups=tuple(group for group in self.groups if is_within(group, repeats))
        )

    def text(self) -> str:
        """Return what its file holds."""

        def content(planned: PlannedRun) -> dict[str, Any]:
            return {name: value for name, value in vars(planned).items() if name != "run"}

        groups = [[*map(content, group)] for group in self.groups]
        return json.dumps({"format": FORMAT, **vars(self), "groups": groups}, indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Return the plan that a file holds.

        Raises
        ------
        InputError : it holds none of this format.
        FileNotFoundError : there is none.
        """

        def run(request: dict, references: list[str], **others: Any) -> PlannedRun:
            request = with_layout(request)
            is_program = "start" in request
            workload = program({}, Path.cwd()) if is_program else WORKLOADS[request["workload"]]
            strategy = STRATEGIES[request["strategy"]]
            declared = Declared(workload, strategy, request["knobs"], request["link"])
            run = Run(**{name: request[name] for name in NAMES}, declared=declared)
            return PlannedRun(request, references=tuple(references), run=run, **others)

        def plan(groups: list, references: list, **others: Any) -> Plan:
            runs = tuple(tuple(run(**content) for content in group) for group in groups)
            return cls(**others, references=tuple(references), groups=runs)

        remedy = "make the call again that wrote it, such as escala run"
        return read_format(path, FORMAT, "plan", remedy, plan)


def is_within(group: Group, repeats: int) -> bool:
    """Return whether a group is of one of the first repeats; those of probes always count."""
    run = group[0].run
    return run.instrument is not None or run.repeat <= repeats


def words_of(run: Run) -> str:
    """Return a line on what measuring a run does. Data called `none` are no data."""
    verb = "Run" if run.declared.workload.is_program else "Train"
    what = f"Capture the {run.instrument} of" if run.instrument else verb
    data = "" if run.dataset == "none" else f" on {run.dataset}"
    return f"{what} {run.workload}{data}: {run.configuration}, {Path(run.folder).name}"


def within_pilot(plan: Plan) -> Plan:
    """Return a plan with the repeats that its pilot asks for; with all until that is known."""
    file = Path(f"results/{plan.experiment}/pilot.json")
    if plan.pilot is None or not file.exists():
        return plan
    return plan.within(read_json(file)["repeats"])


def session_file(experiment: str, nodes: int | None = None) -> Path:
    """Return the file of the plan of an experiment, or of a part of it (`by_nodes`)."""
    return PLANS / experiment / (f"nodes-{nodes}" if nodes else "session") / "plan.json"


def run_file(run: Run) -> Path:
    """Return the file of the plan of one run and of what it is compared with."""
    return PLANS / Path(run.folder).relative_to("results") / "plan.json"


def no_time_file(experiment: str) -> Path:
    """Return the file with the name of the last session that ended because its job does."""
    return PLANS / experiment / "session" / "no-time"


def partial_table_file(experiment: str) -> Path:
    """Return the file of the table for a report before all runs are measured."""
    return PLANS / experiment / "there" / "measurements.json"


def table_of(experiment: str, nodes: int | None = None) -> str:
    """Return the file of the table of measurements of an experiment, or of a part of `by_nodes`."""
    return f"results/{experiment}/{f'nodes-{nodes}/' if nodes else ''}measurements.json"


def plan_session(e: Experiment) -> Plan:
    """Return the plan of all runs of an experiment, with the most repeats that its pilot allows."""
    runs = [*e.largest.timed, *(run for probe in PROBES for run in e.probe_runs(probe))]
    return replace(plan_runs(e, runs, table_of(e.name)), pilot=e.settings.get("pilot"))


def plan_runs(e: Experiment, runs: Iterable[Run], table: str | None = None) -> Plan:
    """Return the plan of some runs of an experiment, and of all that they are compared with.

    Parameters
    ----------
    table : see `Plan`.
    """
    largest, references = e.largest, {}
    waiting = list(runs)
    while waiting:
        run = waiting.pop()
        if run not in references:
            references[run] = largest.references_of(run)
            waiting += references[run]
    positions = {run: largest.position(run) for run in references}
    places_in_repeat = turns(largest.timed)
    groups: dict[tuple, list[PlannedRun]] = {}
    timed = [*largest.runs, *largest.duplicates, *largest.rung_runs]
    probed = [run for probe in PROBES for run in largest.runs_under(probe)]
    places = {run: place for place, run in enumerate([*timed, *probed]) if run in references}
    # Runs without a position come last.
    for run in sorted(places, key=lambda run: math.inf if (at := positions[run]) is None else at):
        planned = PlannedRun(
            request=largest.request(run),
            data=largest.split_of_repeat(run.dataset, run.repeat),
            seconds=60 * largest.settings["time_limit_minutes"],
            turn=places_in_repeat.get(run),
            references=tuple(other.file for other in references[run]),
            place=places[run],
            run=run,
        )
        groups.setdefault(group_of(run), []).append(planned)
    return Plan(e.name, tuple(e.references), None, tuple(map(tuple, groups.values())), table)


def by_nodes(plan: Plan) -> dict[int, list[Run]]:
    """Return the runs of a plan by the nodes that a run and its references need.

    A number of nodes is left out if all its runs are references of runs on more nodes.
    """
    nodes = {planned.file: planned.run.layout.nodes for planned in plan.runs}
    references = {file for planned in plan.runs for file in planned.references}
    by_number: dict[int, list[PlannedRun]] = {}
    for planned in plan.runs:
        most = max(nodes[file] for file in (planned.file, *planned.references))
        by_number.setdefault(most, []).append(planned)
    return {
        most: [planned.run for planned in runs]
        for most, runs in sorted(by_number.items())
        if any(planned.references or planned.file not in references for planned in runs)
    }


def group_of(run: Run) -> tuple:
    """Return a key that is equal for the runs that are measured together, as a group."""
    if run.instrument and not PROBES[run.instrument].compared:
        return (run,)
    ladder = run.series if is_of_ladder(run) else None
    return run.dataset, run.workload, run.instrument, ladder, run.repeat
