"""Runs go to a cluster in the order of execution, one repeat at a time.

On one machine each run has all cores, so that Snakemake's priorities alone keep the order. On a
cluster many jobs are ready at once.
"""

from __future__ import annotations

from collections.abc import Collection

from escala.experiment.runs import is_of_ladder
from escala.workflow import matches
from escala.workflow.internals import Job
from escala.workflow.study import Study


def startable(study: Study, ready: Collection[Job], running: Collection[Job]) -> list[Job]:
    """Return the jobs that may start: of the runs, those of the repeat that is being measured.

    If none is, they are those of the most urgent run's repeat. Jobs that are no runs always may.
    """
    runs = {job: repeat(study, job) for job in ready}
    begun = {repeat(study, job) for job in running} - {None}
    urgent = max((job for job in runs if runs[job]), key=lambda job: job.priority, default=None)
    if not begun and urgent:
        begun = {runs[urgent]}
    return [job for job in ready if runs[job] is None or runs[job] in begun]


def repeat(study: Study, job: Job) -> tuple | None:
    """Return what the runs of a repeat share: of an experiment, of all its ladders or of a probe.

    Runs that come after all others form one repeat. None for a job that is no run.
    """
    if job.is_group() or job.rule.name not in matches.RULES:
        return None
    run = study.run(job.wildcards)
    if study.named(run.experiment).largest.position(run) is None:
        return (run.experiment,)
    return run.experiment, run.instrument, is_of_ladder(run), run.repeat
