"""Keep every match whole in Snakemake's graph of jobs.

Snakemake decides by itself which jobs are needed. For runs that is not enough: when one is
measured, its references are measured with it (`escala.record.matches`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from snakemake.dag import DAG
from snakemake.jobs import Job
from snakemake_interface_common.exceptions import WorkflowError

from escala.core.environment import call
from escala.core.errors import InputError
from escala.experiment import Experiment, Run
from escala.record import key
from escala.record.matches import Identity, Matches
from escala.record.schema import read_result

RULES = ("train", "instrumented")

_update_needrun = DAG.update_needrun


class Graph:
    """The runs in the graph of one call.

    Parameters
    ----------
    run_of : returns the run that a job's wildcards name.
    experiment : returns the experiment of a name.
    """

    def __init__(self, run_of: Callable[..., Run], experiment: Callable[[str], Experiment]):
        self._run_of, self._experiment = run_of, experiment
        # A call of Snakemake sees one state of the code and of the experiments.
        self._identity = cache(self._identity)
        self._source = cache(key.code_sha256)
        #: Runs that are measured only because others are.
        self.added: set[Run] = set()

    def register(self) -> None:
        """Make every graph of this process, whenever it is updated, hold what matches need.

        Raises
        ------
        WorkflowError : as soon as there is a graph, if a target is a run that has failed before
            with the same settings, and that nothing asks for again.
        """

        async def update_needrun(dag: DAG, create_inventory: bool = False) -> None:
            await _update_needrun(dag, create_inventory)
            if dag.workflow.touch:
                return
            while await self._complete(dag):
                await _update_needrun(dag)
            if create_inventory:
                self._refuse_failed_targets(dag)

        DAG.update_needrun = update_needrun

    def jobs(self, dag: DAG) -> Iterator[tuple[Run, Job]]:
        """Yield every run in the graph, with its job."""
        for job in dag.jobs:
            if job.rule.name in RULES:
                yield self._run_of(job.wildcards), job

    async def _complete(self, dag: DAG) -> bool:
        """Ask for the runs that matches need, and return whether there are any."""
        jobs = dict(self.jobs(dag))
        done = {run for run, job in jobs.items() if dag.finished(job)}
        needed = {run for run, job in jobs.items() if dag.needrun(job)} - done
        more = Matches(self._references_of, self._identity, needed, done).incomplete(jobs)
        for file in sorted(run.file for run in more - jobs.keys()):
            jobs_of_file = await dag.file2jobs(file)
            dag.targetjobs.add(await dag.update(jobs_of_file, file=file, create_inventory=True))
        dag.forcefiles |= {run.file for run in more}
        dag.cleanup()
        dag.update_jobids()
        self.added |= more
        return bool(more)

    def _references_of(self, run: Run) -> list[Run]:
        return self._experiment(run.experiment).largest.references_of(run)

    def _identity(self, run: Run) -> Identity:
        request = self._experiment(run.experiment).request(run)
        source = self._source(run.workload, run.strategy, run.instrument)
        return Identity(key.request_sha256(request), source)

    def _refuse_failed_targets(self, dag: DAG) -> None:
        """Refuse a run that has failed: its run.json exists, so Snakemake would report success."""
        for run, job in self.jobs(dag):
            if run.file not in dag.targetfiles or dag.needrun(job):
                continue
            try:
                failed = read_result(Path(run.file))
            except InputError as error:
                raise WorkflowError(str(error)) from None
            if failed["status"] != "ok":
                raise WorkflowError(
                    f"{run.file}: ended as {failed['status']}: {failed['reason']}. To run it "
                    f"again: {call(f'retry results/{run.experiment}')}, then this target"
                )
