"""The plan of a session: frozen values, which the process that reads the experiment writes.

A *group* is what a repeat measures together, on one set of nodes: all timing runs of a repeat of a
dataset and workload, the two sides of a ladder's rung, or the runs of a probe that are compared. A
run and its references are always of one group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.experiment import Experiment, Run
from escala.experiment.references import Reference
from escala.experiment.runs import is_of_ladder
from escala.probes import PROBES
from escala.runtime.layout import Layout

#: Of a plan. Others are refused.
FORMAT = 1


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A run to measure, with all that is told to what measures it.

    Attributes
    ----------
    request : all that determines its result, besides its data and the code.
    data : folder of the split that it trains on.
    seconds : its time limit.
    turn : its place in its repeat (`escala.experiment.Experiment.turn`).
    references : files of the runs that its ratios are formed with, all of its group.
    """

    request: Mapping[str, Any]
    data: str
    seconds: float
    turn: Mapping[str, int] | None
    references: tuple[str, ...]

    @cached_property
    def run(self) -> Run:
        return Run(**{field.name: self.request[field.name] for field in fields(Run)})

    @property
    def file(self) -> str:
        """Its `run.json`."""
        return self.run.file


Group = tuple[PlannedRun, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """What a session measures.

    Attributes
    ----------
    experiment : its name.
    references : of its configurations, the main one first.
    pilot : `half_width`, `repeats` and `at_most` of the experiment, if the session decides after
        its pilot how many repeats it measures; the plan then has as many as that may be.
    groups : in the order of execution, the runs of each in their drawn order.
    """

    experiment: str
    references: tuple[Reference, ...]
    pilot: Mapping[str, Any] | None
    groups: tuple[Group, ...]

    @property
    def runs(self) -> list[PlannedRun]:
        return [each for group in self.groups for each in group]

    @property
    def nodes(self) -> int:
        """The nodes of the largest layout."""
        return max((Layout.parse(each.run.layout).nodes for each in self.runs), default=1)

    def write(self, path: Path) -> None:
        write_json(path, {"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Return the plan that a file holds.

        Raises
        ------
        InputError : it holds none of this format.
        FileNotFoundError : there is none.
        """
        try:
            found = read_json(path)
            if found.pop("format") != FORMAT:
                raise ValueError
            groups = (tuple(_planned(**each) for each in group) for group in found.pop("groups"))
            references = tuple(found.pop("references"))
            return cls(**found, references=references, groups=tuple(groups))
        except (ValueError, TypeError, KeyError, AttributeError):
            remedy = "make the call again that wrote it, such as escala run"
            raise InputError(path, None, f"is no plan of format {FORMAT}", remedy) from None


def _planned(references: list[str], **others: Any) -> PlannedRun:
    return PlannedRun(**others, references=tuple(references))


def plan_session(e: Experiment) -> Plan:
    """Return the plan of all runs of an experiment, with all repeats that its pilot may ask for."""
    runs = [*e.largest.timed, *(run for probe in PROBES for run in e.probed(probe))]
    found = plan_runs(e, runs)
    return Plan(found.experiment, found.references, e.settings.get("pilot"), found.groups)


def plan_runs(e: Experiment, runs: Iterable[Run]) -> Plan:
    """Return the plan of some runs of an experiment, and of all that they are compared with."""
    whole, references = e.largest, {}
    waiting = list(runs)
    while waiting:
        run = waiting.pop()
        if run not in references:
            references[run] = whole.references_of(run)
            waiting += references[run]
    positions = {run: whole.position(run) for run in references}
    groups: dict[tuple, list[PlannedRun]] = {}
    # Of a probe, the order is that of the file.
    for run in sorted(
        (run for probe in (None, *PROBES) for run in whole.instrumented(probe) if run in positions),
        key=lambda run: math.inf if positions[run] is None else positions[run],
    ):
        planned = PlannedRun(
            request=whole.request(run),
            data=whole.split_folder(run.dataset, whole.split_seed(run.dataset, run.repeat)),
            seconds=60 * whole.settings["time_limit_minutes"],
            turn=whole.turn(run),
            references=tuple(other.file for other in references[run]),
        )
        groups.setdefault(_group_of(run), []).append(planned)
    return Plan(e.name, tuple(e.references), None, tuple(map(tuple, groups.values())))


def _group_of(run: Run) -> tuple:
    """Return what the runs have in common that are measured together."""
    if run.instrument and not PROBES[run.instrument].compared:
        return (run,)
    ladder = run.series if is_of_ladder(run) else None
    return run.dataset, run.workload, run.instrument, ladder, run.repeat
