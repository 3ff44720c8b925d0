"""Parameters and resources of the jobs that train."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from math import ceil
from typing import Any

from escala.experiment import Run
from escala.record import again
from escala.runtime.layout import Layout
from escala.runtime.placement import processes_per_node
from escala.strategies import STRATEGIES
from escala.workflow.study import Study, Wildcards


class Training:
    """Functions of the wildcards of a job.

    Parameters
    ----------
    cores : returns the cores of this machine if jobs run on it, and None on a cluster. Snakemake
        knows that only after it has read the rules.
    measured : returns all runs that this call measures, None if it does not start them in turn.
    nodes_of : returns the nodes of a job that a run is given, none if it uses this machine.
    late : returns why a run is not begun, None if it is.
    """

    def __init__(
        self,
        study: Study,
        cores: Callable[[], int | None],
        measured: Callable[[], Iterable[Run] | None],
        nodes_of: Callable[[Run], list[str]] = lambda run: [],
        late: Callable[[Run], str | None] = lambda run: None,
    ):
        self._study, self._cores = study, cores
        self._nodes_of, self._late = nodes_of, late
        self._last = cache(lambda: self._repeats_by_last_run(measured()))

    def _setting(self, wildcards: Wildcards, name: str) -> Any:
        return self._study.experiment(wildcards).settings[name]

    def _cores_per_process(self, wildcards: Wildcards) -> int:
        return self._setting(wildcards, "variants")[wildcards.variant]["cores_per_process"]

    def request(self, wildcards: Wildcards) -> str:
        """Return the run's request, as JSON."""
        run = self._study.run(wildcards)
        return json.dumps(self._study.experiment(wildcards).request(run))

    def turn(self, wildcards: Wildcards) -> Untracked:
        """Return what a job is told of the runs alongside its own: no part of its result."""
        run, e = self._study.run(wildcards), self._study.experiment(wildcards).largest
        return Untracked(
            lambda: {
                "place": e.turn(run),
                "matched_with": [e.request(other) for other in e.matched_with(run)],
                "repeat": None if self._last() is None else self._last().get(run.file, []),
                "nodes": self._nodes_of(run),
                "late": self._late(run),
            }
        )

    def _repeats_by_last_run(self, runs: Iterable[Run] | None) -> dict[str, list[str]] | None:
        """Return the runs that this call measures in each repeat, by the last of them."""
        if runs is None:
            return None
        timed = [run for run in runs if run.instrument is None]
        return again.by_last_run(
            timed, lambda run: self._study.named(run.experiment).largest.position(run)
        )

    def threads(self, wildcards: Wildcards) -> int:
        """Return all cores if jobs run on this machine, so that no other job runs meanwhile."""
        return self._cores() or self.cores_per_task(wildcards)

    def threads_of_one(self, wildcards: Wildcards) -> int:
        """Return all cores if jobs run on this machine, and otherwise those of one process."""
        return self._cores() or self._cores_per_process(wildcards)

    def nodes(self, wildcards: Wildcards) -> int:
        return Layout.parse(wildcards.layout).nodes

    def _tasks_per_node(self, wildcards: Wildcards) -> int:
        strategy = STRATEGIES[self._study.run(wildcards).strategy]
        return processes_per_node(Layout.parse(wildcards.layout), strategy)

    def tasks(self, wildcards: Wildcards) -> int:
        return self.nodes(wildcards) * self._tasks_per_node(wildcards)

    def cores_per_task(self, wildcards: Wildcards) -> int:
        """Return the cores of one process, which may hold several ranks."""
        ranks = Layout.parse(wildcards.layout).processes // self._tasks_per_node(wildcards)
        return ranks * self._cores_per_process(wildcards)

    def launcher(self, wildcards: Wildcards) -> str | None:
        """Return the launcher of a multi-task job, or None, which leaves it to the plugin."""
        return self._setting(wildcards, "launcher") if self.tasks(wildcards) > 1 else None

    def memory_mb(self, wildcards: Wildcards) -> int:
        processes = Layout.parse(wildcards.layout).processes
        return int(1024 * self._setting(wildcards, "memory_gib") * processes)

    def time_limit(self, wildcards: Wildcards) -> int:
        """Return the time limit of a run in seconds: Snakemake's resources are integers."""
        return ceil(60 * self._setting(wildcards, "time_limit_minutes"))

    def job_minutes(self, wildcards: Wildcards) -> int:
        """Return the time limit of a run's job in minutes: the run ends itself before."""
        return int(self._setting(wildcards, "time_limit_minutes")) + 5

    def slurm_extra(self, wildcards: Wildcards) -> str:
        """Return further options of sbatch: a timing run has its nodes to itself."""
        options = ["--exclusive", f"--ntasks-per-node={self._tasks_per_node(wildcards)}"]
        if queue := self._setting(wildcards, "queue_minutes"):
            seconds = ceil(60 * (queue + self.job_minutes(wildcards)))
            options.append(f"--deadline=now+{seconds}seconds")
        return " ".join(options)

    def priority(self, wildcards: Wildcards) -> float:
        """Return the priority of a run: about 1000 for the first, and less for each later one."""
        e = self._study.experiment(wildcards).largest
        position = e.position(self._study.run(wildcards))
        return 0 if position is None else 1000 * (1 - position / len(e.timed))


class Untracked:
    """Hold a parameter that a job needs, and whose change is no reason to run it again.

    Snakemake records parameters of the types that it can compare, and this is not one of them. In a
    shell command it is JSON.

    Parameters
    ----------
    value : returns what JSON can hold; called only for a job that runs.
    """

    def __init__(self, value: Callable[[], Any]):
        self._value = value

    def __str__(self) -> str:
        return json.dumps(self._value())
