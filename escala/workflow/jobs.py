"""Resources of the jobs that measure."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from escala.core.engines import DEFAULT, ENGINES
from escala.experiment import Experiment, Run
from escala.experiment.runs import engines_of
from escala.measure import job
from escala.workflow.plans import Plans
from escala.workflow.study import Study, Wildcards


class Jobs:
    """Functions of the wildcards of a job.

    Parameters
    ----------
    cores : returns the cores of this machine if jobs run on it, and None on a cluster. Snakemake
        knows that only after it has read the rules.
    """

    def __init__(self, study: Study, plans: Plans, cores: Callable[[], int | None]):
        self._study, self._plans, self._cores = study, plans, cores

    def _runs(self, wildcards: Wildcards) -> list[Run]:
        return [each.run for each in self._plans.plan_of(wildcards).runs]

    def _experiment(self, wildcards: Wildcards) -> Experiment:
        return self._study.experiment(wildcards)

    def _shape(self, wildcards: Wildcards) -> job.Shape:
        return job.shape(self._runs(wildcards))

    def conda(self, wildcards: Wildcards) -> str:
        """Return the file of the environment of conda, from that of a rule: of the one engine, or
        the usual.
        """
        names = engines_of(self._runs(wildcards))
        [engine] = names if len(names) == 1 else [DEFAULT]
        return f"../envs/{ENGINES[engine].environment.conda}"

    def threads(self, wildcards: Wildcards) -> int:
        """Return all cores if jobs run on this machine, so that no other job runs meanwhile."""
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
        """Return the launcher of a multi-task job, or None, which leaves it to the plugin."""
        several = self.tasks(wildcards) > 1
        return self._experiment(wildcards).settings["launcher"] if several else None

    def minutes(self, wildcards: Wildcards) -> int:
        """Return the time limit of a job in minutes: that of what is left, and of any one run.

        A session ends before, and goes on in another job.
        """
        begun = self._plans.begun_by(wildcards) or self._runs(wildcards)
        limit = ceil(self._experiment(wildcards).settings["time_limit_minutes"])
        return max(job.time_of(begun).minutes, job.BEGIN_MINUTES + limit)

    def slurm_extra(self, wildcards: Wildcards) -> str:
        """Return further options of sbatch: a session has its nodes to itself."""
        options = ["--exclusive", f"--ntasks-per-node={self._shape(wildcards).tasks}"]
        if queue := self._experiment(wildcards).settings["queue_minutes"]:
            seconds = int(60 * (queue + self.minutes(wildcards)))
            options.append(f"--deadline=now+{seconds}seconds")
        return " ".join(options)
