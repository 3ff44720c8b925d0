"""The plans of a call of Snakemake: inputs of the rules that measure.

The main process writes a plan when Snakemake asks for the input. If a run must be measured, the
file is new, so that Snakemake runs the rule. Otherwise the file is older than all results.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from escala.analysis.cost_model.calibrating import CalibrationExperiment
from escala.core.engines import DEFAULT, ENGINES
from escala.core.environment import call, session
from escala.core.errors import InputError
from escala.core.files import write_text
from escala.experiment import Experiment, Run
from escala.experiment.runs import engines_of
from escala.measure import estimate, missing, table
from escala.measure.plan import (
    Plan,
    by_nodes,
    group_of,
    partial_table_file,
    plan_runs,
    plan_session,
    run_file,
    session_file,
    table_of,
    until_stop,
)
from escala.record.schema import read_result
from escala.workflow.experiments import Experiments, Wildcards, refuse, show_errors

#: The part of an experiment in a plan: a run, the runs on a number of nodes, or (None) all runs.
Part = Run | int | None
#: The time of change of a plan without runs to measure, in seconds since 1970.
_OLD = 1


class Plans:
    """The plans of a call, by the wildcards of its jobs.

    Parameters
    ----------
    is_main : whether this process makes the graph of jobs.
    has_links : returns whether there are several nodes with links between them.
    forced : returns the rules that run even if their results exist.
    provide : makes the environments of engines; what is measured depends on what they hold.
    targets : returns the targets of the call.

    Attributes
    ----------
    left : the runs that this call measures, by their files.
    target_runs : by their files, all runs of the tables that are targets, also complete runs.
    files : the plans that this call has asked for, by their files.
    """

    def __init__(
        self,
        experiments: Experiments,
        is_main: bool,
        has_links: Callable[[], bool],
        forced: Callable[[], set[str]],
        provide: Callable[[set[str]], None],
        targets: Callable[[], set[str]] = set,
    ):
        self._experiments, self._is_main, self._has_links = experiments, is_main, has_links
        self._forced, self._provide, self._targets_of_call = forced, provide, targets
        # Code and experiments are read once in a call of Snakemake.
        self._plan = cache(self._plan)
        self._make_file = cache(self._make_file)
        # By experiment and group, the runs that Snakemake has asked for by their `run.json`.
        self._run_targets: dict[tuple, set[Run]] = {}
        # The targets and all runs that are measured with them.
        self._with_targets: set[Run] = set()
        self.left: dict[str, Run] = {}
        self.target_runs: dict[str, Run] = {}
        self.files: dict[Path, Plan] = {}

    @property
    def added(self) -> set[Run]:
        """The runs that are no targets, but with which targets are compared."""
        return self._with_targets.difference(*self._run_targets.values())

    def plan_of(self, wildcards: Wildcards) -> Plan:
        """Return the plan of a run and of its references, or of all runs of an experiment."""
        name, part = wildcards.experiment, self._part_of(wildcards)
        return self.files.get(_file_of(name, part)) or self._plan(name, part)

    def session_plan(self, wildcards: Wildcards) -> str:
        """Return the file of the plan of an experiment, or of its runs on a number of nodes.

        The file is written if runs must be measured, or if the plan has changed.
        """
        return self._make_file(wildcards.experiment, self._part_of(wildcards))

    def parts_of(self, wildcards: Wildcards) -> list[str]:
        """Return the tables of an experiment that has a session for each number of nodes."""
        name = wildcards.experiment
        return [table_of(name, nodes) for nodes in by_nodes(self._plan(name, None))]

    def run_plan(self, wildcards: Wildcards) -> str:
        """Return the file of the plan of one run and its references; see `session_plan`."""
        return self._make_file(wildcards.experiment, self._experiments.run(wildcards))

    def runs_of_job(self, wildcards: Wildcards) -> list[Run]:
        """Return the runs that a job of a cluster measures: all runs of every incomplete group.

        The list is empty if these runs are not known.
        """
        file = _file_of(wildcards.experiment, self._part_of(wildcards))
        groups = until_stop(self.files[file]).groups if file in self.files else ()
        incomplete = (group for group in groups if any(p.file in self.left for p in group))
        return [planned.run for group in incomplete for planned in group]

    def splits_of(self, wildcards: Wildcards) -> list[str]:
        """Return the descriptions of the splits that an experiment's runs train on."""
        return sorted({f"{run.data}/dataset.json" for run in self.plan_of(wildcards).runs})

    def present_table(self, e: Experiment) -> str:
        """Return the table of an experiment if it is current, else a table of the existing runs."""
        plan, file = until_stop(self._plan(e.name, None)), partial_table_file(e.name)
        if _is_current(plan) and not missing.runs_left_of(plan, missing.Present()):
            return table_of(e.name)
        if self._is_main and (text := table.text(plan)) != _content(file):
            write_text(file, text)
        return str(file)

    def write_present_table(self, plan: Plan) -> None:
        """Write the table of a session that failed. Snakemake has removed or replaced the table.

        The next call does not depend on the table, because the plan shows the runs to measure.
        """
        if plan.table and table.rows_of(plan.runs):
            write_text(Path(plan.table), table.text(until_stop(plan)))

    def progress(self) -> str:
        """Return how many runs in the plans of this call are measured."""
        plans = map(until_stop, self.files.values())
        present, runs = missing.Present(), {run.file: run for plan in plans for run in plan.runs}
        left = missing.find_missing(tuple(runs.values()), present)
        return f"{len(runs) - len(left)} of {len(runs)} runs measured"

    def _part_of(self, wildcards: Wildcards) -> Part:
        if hasattr(wildcards, "workload"):
            return self._experiments.run(wildcards)
        return int(wildcards.nodes) if hasattr(wildcards, "nodes") else None

    def _plan(self, name: str, part: Part) -> Plan:
        e = self._experiments.by_name(name)
        if isinstance(part, Run):
            return plan_runs(e, [part])
        if part:
            runs = by_nodes(self._plan(name, None)).get(part, [])
            return plan_runs(e, runs, table_of(name, part))
        if isinstance(e, CalibrationExperiment):
            return plan_runs(e, e.runs_needed(self._has_links()), table_of(name))
        return plan_session(e)

    def _make_file(self, name: str, part: Part) -> str:
        file = _file_of(name, part)
        if self._is_main and isinstance(part, Run):
            # If several jobs are for runs of one group, the first job measures the whole group.
            targets = self._run_targets.setdefault((name, group_of(part)), set())
            targets.add(part)
            plan = plan_runs(self._experiments.by_name(name), targets)
            for run in targets:
                self._write_plan(name, run, plan)
        elif self._is_main:
            self._write_plan(name, part, self._plan(name, part))
        return str(file)

    def _write_plan(self, name: str, part: Part, plan: Plan) -> None:
        """Write a plan. Its file is new if runs must be measured; otherwise it is old."""
        file, run = _file_of(name, part), part if isinstance(part, Run) else None
        if {"all", *(("run", "run_of_probe") if run else ("measure",))} & self._forced():
            plan = replace(plan, since=session())
        runs = until_stop(plan).runs
        try:
            self._provide(engines_of(planned.run for planned in runs))
        except InputError as error:
            refuse(error)
        # The environment of the job is not known here, so measurements in any environment count.
        left = missing.runs_left_of(until_stop(plan), missing.Present(since=plan.since))
        self.left |= {planned.file: planned.run for planned in left}
        self.files[file] = plan
        if run:
            self._with_targets |= {planned.run for planned in left}
            _refuse_failed(plan, run.file, {run.file})
        elif plan.table in self._targets_of_call():
            self.target_runs |= {planned.file: planned.run for planned in runs}
            if not left:
                _refuse_failed(plan, plan.table, {*self.target_runs})
        # A later part measures the references of an earlier part again. The table of the earlier
        # part keeps its results of them, and is not made again for that.
        is_current = part is not None or _is_current(until_stop(plan))
        _write(file, plan, bool(left) or not is_current)


def _file_of(name: str, part: Part) -> Path:
    return run_file(part) if isinstance(part, Run) else session_file(name, part)


def _refuse_failed(plan: Plan, target: str, files: set[str]) -> None:
    """Refuse a target with a failed run. The target exists, so Snakemake would report success."""
    present = missing.Present(since=plan.since)
    failed = {run.file for group in plan.groups for run in missing.find_failed(group, present)}
    if file := min(failed & files, default=None):
        with show_errors():
            result = read_result(Path(file))
        others = f", and {len(failed & files) - 1} more" * (len(failed & files) > 1)
        about = "" if file == target else f" {file}"
        refuse(
            f"{target}:{about} ended as {result['status']}: {result['reason']}{others}. To run "
            f"{'them' if others else 'it'} again: {call(f'retry results/{plan.experiment}')}, then "
            "this target"
        )


def _write(path: Path, plan: Plan, must_measure: bool) -> None:
    """Write a plan to measure as a new file; else, if its text has changed, as an old file."""
    if must_measure:
        # Snakemake ignores a new file if the content is unchanged.
        write_text(path, replace(plan, call=session()).text(), durable=False)
        return
    with suppress(InputError, FileNotFoundError):
        if replace(Plan.read(path), call="").text() == plan.text():
            return
    write_text(path, plan.text(), durable=False)
    os.utime(path, (_OLD, _OLD))


def _is_current(plan: Plan) -> bool:
    """Return whether the table of measurements shows the present results of the runs of a plan."""
    return table.text(plan) == _content(Path(plan.table))


def _content(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.exists() else None


class Jobs:
    """Resources and environments of the jobs that measure, by their wildcards.

    Parameters
    ----------
    cores : returns the cores of this machine if jobs run on it, and None on a cluster. Snakemake
        knows where jobs run only after it has read the rules.
    """

    def __init__(self, experiments: Experiments, plans: Plans, cores: Callable[[], int | None]):
        self._experiments, self._plans, self._cores = experiments, plans, cores

    def _runs(self, wildcards: Wildcards) -> list[Run]:
        return [planned.run for planned in self._plans.plan_of(wildcards).runs]

    def _shape(self, wildcards: Wildcards) -> estimate.Shape:
        return estimate.shape(self._runs(wildcards))

    def conda(self, wildcards: Wildcards) -> str:
        """Return the file of the conda environment of the only engine, or of the default engine.

        The path starts in the folder of the rules.
        """
        names = engines_of(self._runs(wildcards))
        [engine] = names if len(names) == 1 else [DEFAULT]
        return f"../envs/{ENGINES[engine].environment.conda}"

    def threads(self, wildcards: Wildcards) -> int:
        """Return all cores if jobs run on this machine, so that jobs run one by one."""
        return self._cores() or self.cores_per_task(wildcards)

    def nodes(self, wildcards: Wildcards) -> int:
        """Return the nodes of the largest layout."""
        return self._shape(wildcards).nodes

    def tasks(self, wildcards: Wildcards) -> int:
        shape = self._shape(wildcards)
        return shape.nodes * shape.tasks

    def cores_per_task(self, wildcards: Wildcards) -> int:
        return self._shape(wildcards).cores

    def launcher(self, wildcards: Wildcards) -> Any:
        """Return the launcher of a multi-task job, or None, so that the plugin decides."""
        several = self.tasks(wildcards) > 1
        return self._experiments.experiment(wildcards).settings["launcher"] if several else None

    def minutes(self, wildcards: Wildcards) -> int:
        """Return the time limit of a job in minutes: enough for the runs, and for any single run.

        A session ends before its job ends, and continues in another job.
        """
        runs = self._plans.runs_of_job(wildcards) or self._runs(wildcards)
        limit = ceil(self._experiments.experiment(wildcards).settings["time_limit_minutes"])
        return max(estimate.time_of(runs).minutes, estimate.BEGIN_MINUTES + limit)

    def slurm_extra(self, wildcards: Wildcards) -> str:
        """Return further options of sbatch: a session has its nodes to itself."""
        options = ["--exclusive", f"--ntasks-per-node={self._shape(wildcards).tasks}"]
        if queue := self._experiments.experiment(wildcards).settings["queue_minutes"]:
            seconds = int(60 * (queue + self.minutes(wildcards)))
            options.append(f"--deadline=now+{seconds}seconds")
        return " ".join(options)
