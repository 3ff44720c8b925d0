"""Keep every match whole in Snakemake's graph of jobs.

Snakemake decides by itself which jobs are needed. For runs that is not enough: when one is
measured, its references are measured with it (`escala.record.matches`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from snakemake_interface_common.exceptions import WorkflowError

from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.variables import PROFILE
from escala.experiment import Run
from escala.record import again, key
from escala.record.matches import Identity, Matches
from escala.record.schema import read_result
from escala.workflow import internals
from escala.workflow.internals import DAG, Job
from escala.workflow.study import Study, shown

RULES = ("train", "instrumented")
#: All rules that measure, or that compute from measurements of their own.
MEASURING = (*RULES, "pilot", "gradients", "calibrate", "predict_times")


class Graph:
    """The runs in the graph of a call.

    Parameters
    ----------
    reports_only : returns whether the call measures nothing, and reports the runs that are there.
    in_job : returns whether the call is inside a job. Then a repeat of which a run is measured is
        measured whole, so that any two of its runs are of one job.

    Attributes
    ----------
    added : runs that are measured only because others are.
    """

    def __init__(self, study: Study, reports_only: Callable[[], bool], in_job: Callable[[], bool]):
        self._study, self._reports_only, self._in_job = study, reports_only, in_job
        # A call of Snakemake sees one state of the code and of the experiments.
        self._identity = cache(self._identity)
        self._source = cache(key.code_sha256)
        self.added: set[Run] = set()

    def register(self) -> None:
        """Make every graph of this process, whenever it is updated, hold what matches need.

        Raises
        ------
        WorkflowError : as soon as there is a graph, if a target is a run that has failed before
            with the same settings, and that nothing asks for again.
        """
        internals.on_update(self._complete, self._refuse_failed_targets)

    def jobs(self, dag: DAG) -> Iterator[tuple[Run, Job]]:
        """Yield every run in the graph, with its job."""
        for job in internals.jobs(dag, *RULES):
            yield self._study.run(job.wildcards), job

    async def _complete(self, dag: DAG) -> bool:
        """Ask for the runs that matches need, and return whether there are any."""
        if unseen := internals.unseen_changes(dag.workflow):
            profile = os.environ.get(PROFILE)
            named = f" or in {profile}, which the variable {PROFILE} names" if profile else ""
            with shown():
                raise InputError(
                    "--rerun-triggers",
                    None,
                    f"leaves out {', '.join(unseen)}, so results of other settings or of other "
                    "code would be taken for those of this experiment",
                    f"leave it out, on the command line, in the profile of the call{named}",
                )
        if self._reports_only():
            if not dag.rules_allowed_for_needrun:
                internals.forbid(dag, *MEASURING)
                return True
            return False
        jobs = dict(self.jobs(dag))
        done = {run for run, job in jobs.items() if dag.finished(job)}
        needed = {run for run, job in jobs.items() if dag.needrun(job)} - done
        more = Matches(self._references_of, self._identity, needed, done).incomplete(jobs)
        if self._in_job():
            repeats = {again.repeat_of(run) for run in needed | more if run.instrument is None}
            more |= {
                run
                for run in jobs.keys() - needed - done
                if run.instrument is None
                and again.repeat_of(run) in repeats
                and not self._has_failed(run)
            }
        files = {run.file for run in more}
        await internals.request(dag, {run.file for run in more - jobs.keys()}, files)
        self.added |= more
        return bool(more)

    def _has_failed(self, run: Run) -> bool:
        """Return whether a run is a gap, which only a call of its own measures again."""
        try:
            return read_result(Path(run.file))["status"] != "ok"
        except (InputError, FileNotFoundError):
            return False

    def _references_of(self, run: Run) -> list[Run]:
        return self._study.named(run.experiment).largest.references_of(run)

    def _identity(self, run: Run) -> Identity:
        request = self._study.named(run.experiment).request(run)
        return Identity.expected(run, request, self._source)

    def _refuse_failed_targets(self, dag: DAG) -> None:
        """Refuse a run that has failed: its run.json exists, so Snakemake would report success."""
        for run, job in self.jobs(dag):
            if run.file not in dag.targetfiles or dag.needrun(job):
                continue
            with shown():
                failed = read_result(Path(run.file))
            if failed["status"] != "ok":
                raise WorkflowError(
                    f"{run.file}: ended as {failed['status']}: {failed['reason']}. To run it "
                    f"again: {call(f'retry results/{run.experiment}')}, then this target"
                )
