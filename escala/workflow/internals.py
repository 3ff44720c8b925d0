"""All that this project uses of Snakemake beyond its documentation, for the tested versions.

No other module does (`tests/unit/test_workflow_package.py`).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from snakemake import cli, exceptions  # First: the others import each other in a circle.
from snakemake.api import SnakemakeApi, Workflow
from snakemake.dag import DAG
from snakemake.executors import local
from snakemake.jobs import Job
from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake.settings.enums import RerunTrigger
from snakemake.shell import shell
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

_update_needrun = DAG.update_needrun
_select = JobScheduler.job_selector
_argument_parser = cli.get_argument_parser


def on_update(complete: Callable[[DAG], Awaitable[bool]], created: Callable[[DAG], None]) -> None:
    """Extend every graph of jobs of this process whenever it is updated.

    Parameters
    ----------
    complete : asks for further jobs, and returns whether it did; called until it does not.
    created : called when the graph has just been made.
    """

    async def update_needrun(dag: DAG, create_inventory: bool = False) -> None:
        await _update_needrun(dag, create_inventory)
        if dag.workflow.touch:
            return
        while await complete(dag):
            await _update_needrun(dag)
        if create_inventory:
            created(dag)

    DAG.update_needrun = update_needrun


def jobs(dag: DAG, *rules: str, needed: bool = False) -> Iterator[Job]:
    """Yield the jobs of some rules, or of all; `needed` yields those that are to run."""
    for job in dag.jobs:
        if (not rules or job.rule.name in rules) and (not needed or dag.needrun(job)):
            yield job


def unseen_changes(workflow: Workflow) -> list[str]:
    """Return the kinds of changes after which a call makes no result again (`--rerun-triggers`)."""
    unseen = RerunTrigger.all() - workflow.dag_settings.rerun_triggers
    return sorted(each.item_to_choice() for each in unseen)


def targets(workflow: Workflow) -> set[str]:
    """Return the targets of a call, rules and files; none while the rules are read."""
    return set(map(str, workflow.dag_settings.targets)) if workflow.dag_settings else set()


def forbid(dag: DAG, *rules: str) -> None:
    """Run no job of some rules: what they made is taken as it is."""
    dag.rules_allowed_for_needrun = {rule.name for rule in dag.rules} - set(rules)


async def request(dag: DAG, files: Iterable[str], forced: Iterable[str]) -> None:
    """Add the jobs of files to a graph, as if they were targets, and force some to run."""
    for file in sorted(files):
        jobs_of_file = await dag.file2jobs(file)
        dag.targetjobs.add(await dag.update(jobs_of_file, file=file, create_inventory=True))
    dag.forcefiles |= set(forced)
    dag.cleanup()
    dag.update_jobids()


def forget(workflow: Workflow, file: str) -> None:
    """Remove what Snakemake remembers of how a file was made."""
    workflow.persistence.cleanup_metadata(file)


def failed_jobs(workflow: Workflow) -> list[Job]:
    """Return the jobs of a call that failed."""
    failed = workflow.scheduler.failed if workflow.scheduler else []
    return [each for job in failed for each in (job.jobs if job.is_group() else [job])]


def local_processes() -> list[int]:
    """Return the ids of the processes of the jobs on this machine."""
    return [process.pid for process in list(shell._processes.values())]


def submitted_name(workflow: Workflow) -> str | None:
    """Return the name of all jobs that this call has submitted to SLURM, if it submits any."""
    executor = workflow.scheduler._executor if workflow.scheduler else None
    return getattr(executor, "run_uuid", None)


def on_selection(startable: Callable[[Collection[Job], Collection[Job]], list[Job]]) -> None:
    """Whenever jobs are chosen to be started, choose among some only, the most urgent first.

    Parameters
    ----------
    startable : returns those of the jobs that are ready which may start beside those that run; some
        if none runs.
    """

    def job_selector(scheduler: JobScheduler, ready: Collection[Job]) -> list[Job]:
        jobs = startable(ready, scheduler.running)
        return sorted(_select(scheduler, set(jobs)), key=lambda job: -job.priority)

    JobScheduler.job_selector = job_selector


def ask_at_one_interval() -> None:
    """Ask a scheduler about jobs at the profile's interval, until the workflow ends.

    The executor for SLURM would wait 10 s longer each time, up to 180 s, also for its own end.
    """

    async def sleep(executor: RemoteExecutor) -> None:
        settings = executor.workflow.remote_execution_settings
        due = time.monotonic() + settings.seconds_between_status_checks
        while executor.wait and time.monotonic() < due:
            await asyncio.sleep(min(1, settings.seconds_between_status_checks))

    RemoteExecutor.sleep = sleep


class _InOrder(ThreadPoolExecutor):
    """Submit one job after the other, and end the workflow if one cannot be submitted.

    The two threads of the executor for SLURM change the order of jobs, and the workflow then waits
    for one whose submission failed, for example because there is no such account.
    """

    def __init__(self, scheduler: JobScheduler):
        super().__init__(max_workers=1)
        self._scheduler = scheduler

    def submit(self, run: Callable, *arguments: object) -> Future:
        submission = super().submit(run, *arguments)
        submission.add_done_callback(self._tell)
        return submission

    def _tell(self, submission: Future) -> None:
        if not submission.cancelled() and (error := submission.exception()):
            self._scheduler.executor_error_callback(error)


def submit_in_order(workflow: Workflow) -> None:
    """Let the executor for SLURM submit jobs in the order in which they were chosen."""
    workflow.scheduler._executor._job_submission_executor = _InOrder(workflow.scheduler)


def submit_no_more(workflow: Workflow) -> None:
    """Leave out submissions that wait: the executor would make them after it cancels the others."""
    workflow.scheduler._executor._job_submission_executor.shutdown(wait=False, cancel_futures=True)


def jobs_on_cluster(workflow: Workflow) -> bool:
    """Return whether jobs go to a cluster, also in a dry run, which has another executor."""
    return workflow.resource_settings.nodes is not None


def experiment_settings(workflow: Workflow) -> tuple[list[Path], dict]:
    """Return the files of `--configfile`, and the changes of `--config`."""
    settings = workflow.config_settings
    return list(settings.configfiles), dict(settings.config)


def tell_no_job(ended: Callable[[], bool]) -> None:
    """Print no error of a job once `ended` returns that all jobs end as they are meant to.

    Snakemake prints the whole command of a job, which holds its request.
    """

    def unless_ended(tell: Callable[..., None]) -> Callable[..., None]:
        def told(*arguments, **options) -> None:
            if not ended():
                tell(*arguments, **options)

        return told

    local.print_exception = unless_ended(exceptions.print_exception)
    Job.log_error = unless_ended(Job.log_error)


def end_dry_run(workflow: Workflow) -> bool:
    """Return whether this process ends a dry run that has made its graph."""
    return workflow.is_main_process and workflow.dryrun and workflow.dag is not None


def call(
    words: Sequence[str],
    tell: Callable[[Exception, Collection[str]], bool],
    refuse: Callable[[str, Collection[str]], NoReturn],
) -> int | str | None:
    """Make a call of Snakemake in this process; return the exit code, or the message of its end.

    Parameters
    ----------
    tell : prints an error in its own way, and returns whether it did. It also gets the names of the
        rules that may be targets; none before the rules are read.
    refuse : raises an error for a message on words, or on keys of a profile, that Snakemake cannot
        read. It also gets all options.
    """

    def print_exception(error: Exception, linemaps: dict | None = None) -> None:
        if not tell(error, ()):
            exceptions.print_exception(error, linemaps)

    def print_exception_of_workflow(api: SnakemakeApi, error: Exception) -> None:
        workflow = api._workflow_api._workflow_store if api._workflow_api else None
        rules = workflow.rules if workflow else ()
        if not tell(error, [rule.name for rule in rules if not rule.has_wildcards()]):
            exceptions.print_exception(error, workflow.linemaps if workflow else None)

    def get_argument_parser(profiles: Sequence[str | Path] | None = None):
        for profile in profiles or ():
            if cli.get_profile_dir(profile) is None:
                refuse(f"--profile: {profile} is not a folder with a config.yaml", ())
        parser = _argument_parser(profiles)
        parser.error = lambda message: refuse(message, parser._option_string_actions)
        return parser

    cli.print_exception, cli.get_argument_parser = print_exception, get_argument_parser
    SnakemakeApi.print_exception = print_exception_of_workflow
    sys.argv = ["snakemake", *words]
    try:
        cli.main()
    except SystemExit as end:
        return end.code
