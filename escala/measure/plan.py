"""The plan of a session: frozen values. The process that reads the experiment writes them.

A *group* is a set of runs that a repeat measures together, on one set of nodes: all timing runs of
a dataset and workload, the two sides of a ladder's rung, or the runs of a probe that are compared.
A run and its references are always in one group.
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

#: The format of a plan. Plans of other formats are refused.
FORMAT = 3
#: Numbers of complete repeats after which a `sequential` session looks at its runs.
LOOKS = (5, 7, 10, 14, 20, 30)
#: The folder of all plans. Each plan has its own folder inside, because Snakemake remembers the
#: content of a folder.
PLANS = Path(".escala/plans")


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A run to measure, with everything that the measurement needs.

    Attributes
    ----------
    request : everything that determines the result, besides the data and the code.
    data : the folder of the split that the run trains on.
    seconds : the time limit of the run.
    turn : the place of the run in its repeat (`escala.experiment.expand.turns`); None for a run of
        a probe.
    references : files of the runs that the run is compared with, all in the same group.
    place : the place of the run in the list of runs of the experiment.
    run : if the plan was read from a file, the `declared` of the run has only values from the
        request.
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
        """The `run.json` of the run."""
        return self.run.file


Group = tuple[PlannedRun, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """The runs of a session, in the order of execution.

    Attributes
    ----------
    experiment : the name of the experiment.
    references : the references of the experiment, the main one first.
    sequential : the key `repeats` of the experiment, if the session decides when it stops. The plan
        then has the largest number of repeats.
    groups : the groups in the order of execution. The runs of a group have their drawn order.
    table : the table of measurements to write (`escala.measure.table`); None if the plan has only
        some runs.
    since : the first session whose measurements count; empty: all sessions count.
    call : the session of the call that wrote the plan, if a run must be measured; else empty.
    """

    experiment: str
    references: tuple[Reference, ...]
    sequential: Mapping[str, Any] | None
    groups: tuple[Group, ...]
    table: str | None = None
    since: str = ""
    call: str = ""

    @property
    def runs(self) -> list[PlannedRun]:
        return [planned for group in self.groups for planned in group]

    def within(self, repeats: int) -> Plan:
        """Return this plan with the timing runs of the first repeats, and all runs of probes."""
        return replace(
            self, groups=tuple(group for group in self.groups if is_within(group, repeats))
        )

    def text(self) -> str:
        """Return the content of the file of the plan."""

        def content(planned: PlannedRun) -> dict[str, Any]:
            return {name: value for name, value in vars(planned).items() if name != "run"}

        groups = [[*map(content, group)] for group in self.groups]
        return json.dumps({"format": FORMAT, **vars(self), "groups": groups}, indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Return the plan in a file.

        Raises
        ------
        InputError : the file holds no plan of this format.
        FileNotFoundError : the file does not exist.
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
    """Return whether a group is in the first repeats; True for every group of a probe."""
    run = group[0].run
    return run.instrument is not None or run.repeat <= repeats


def words_of(run: Run) -> str:
    """Describe the measurement of a run in a line, without a dataset of the name `none`."""
    verb = "Run" if run.declared.workload.is_program else "Train"
    what = f"Capture the {run.instrument} of" if run.instrument else verb
    data = "" if run.dataset == "none" else f" on {run.dataset}"
    return f"{what} {run.workload}{data}: {run.configuration}, {Path(run.folder).name}"


def until_stop(plan: Plan) -> Plan:
    """Return a plan without the repeats after the one at which its session decided to stop."""
    if plan.sequential is None or not (file := looks_file(plan.experiment)).exists():
        return plan
    looks = read_json(file)
    answers = looks["is_final"] and looks["threshold"] == plan.sequential["threshold"]
    return plan.within(looks["repeats"]) if answers else plan


def looks_until(most: int) -> tuple[int, ...]:
    """Return the numbers of repeats after which a session of at most `most` repeats looks."""
    return (*(number for number in LOOKS if number < most), most)


def looks_file(experiment: str) -> Path:
    """Return the file with the results of the looks of a `sequential` session."""
    return Path(f"results/{experiment}/looks.json")


def session_file(experiment: str, nodes: int | None = None) -> Path:
    """Return the file of the plan of an experiment, or of its part for a number of nodes."""
    return PLANS / experiment / (f"nodes-{nodes}" if nodes else "session") / "plan.json"


def run_file(run: Run) -> Path:
    """Return the file of the plan of one run and its references."""
    return PLANS / Path(run.folder).relative_to("results") / "plan.json"


def no_time_file(experiment: str) -> Path:
    """Return the file with the name of the last session that ended with the time of its job."""
    return PLANS / experiment / "session" / "no-time"


def partial_table_file(experiment: str) -> Path:
    """Return the file of the table for a report before all runs are measured."""
    return PLANS / experiment / "there" / "measurements.json"


def table_of(experiment: str, nodes: int | None = None) -> str:
    """Return the file of the table of an experiment, or of its part for a number of nodes."""
    return f"results/{experiment}/{f'nodes-{nodes}/' if nodes else ''}measurements.json"


def plan_session(e: Experiment) -> Plan:
    """Return the plan of all runs of an experiment."""
    runs = [*e.timed, *(run for probe in PROBES for run in e.probe_runs(probe))]
    return replace(plan_runs(e, runs, table_of(e.name)), sequential=e.sequential)


def plan_runs(e: Experiment, runs: Iterable[Run], table: str | None = None) -> Plan:
    """Return the plan of some runs of an experiment and of their references.

    Parameters
    ----------
    table : see `Plan`.
    """
    references: dict[Run, list[Run]] = {}
    waiting = list(runs)
    while waiting:
        run = waiting.pop()
        if run not in references:
            references[run] = e.references_of(run)
            waiting += references[run]
    positions = {run: e.position(run) for run in references}
    places_in_repeat = turns(e.timed)
    groups: dict[tuple, list[PlannedRun]] = {}
    timed = [*e.runs, *e.duplicates, *e.rung_runs]
    probed = [run for probe in PROBES for run in e.runs_under(probe)]
    places = {run: place for place, run in enumerate([*timed, *probed]) if run in references}
    # Runs without a position come last.
    for run in sorted(places, key=lambda run: math.inf if (at := positions[run]) is None else at):
        planned = PlannedRun(
            request=e.request(run),
            data=e.split_of_repeat(run.dataset, run.repeat),
            seconds=60 * e.settings["time_limit_minutes"],
            turn=places_in_repeat.get(run),
            references=tuple(other.file for other in references[run]),
            place=places[run],
            run=run,
        )
        groups.setdefault(group_of(run), []).append(planned)
    return Plan(e.name, tuple(e.references), None, tuple(map(tuple, groups.values())), table)


def by_nodes(plan: Plan) -> dict[int, list[Run]]:
    """Return the runs of a plan by the largest number of nodes of a run and its references.

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
    """Return the key of the group of a run. Runs of a group are measured together."""
    if run.instrument and not PROBES[run.instrument].compared:
        return (run,)
    ladder = run.series if is_of_ladder(run) else None
    return run.dataset, run.workload, run.instrument, ladder, run.repeat
