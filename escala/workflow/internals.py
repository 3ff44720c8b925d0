"""All that this project uses of Snakemake beyond its documentation, for the tested versions.

No other module does, but for the subclass of SLURM's executor
(`tests/unit/test_workflow_package.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

from snakemake.api import Workflow  # First: the others import each other in a circle.
from snakemake.dag import DAG
from snakemake.jobs import Job
from snakemake.shell import shell
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

_update_needrun = DAG.update_needrun


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
    return list(workflow.scheduler.failed) if workflow.scheduler else []


def local_processes() -> list[int]:
    """Return the ids of the processes of the jobs on this machine."""
    return [process.pid for process in list(shell._processes.values())]


def submitted_name(workflow: Workflow) -> str | None:
    """Return the name of all jobs that this call has submitted to SLURM, if it submits any."""
    return getattr(workflow.scheduler._executor, "run_uuid", None)


def use_executor(plugin: str, executor: type) -> None:
    """Make Snakemake run the jobs of a plugin by another executor."""
    ExecutorPluginRegistry().get_plugin(plugin).executor = executor


def jobs_on_cluster(workflow: Workflow) -> bool:
    """Return whether jobs go to a cluster, also in a dry run, which has another executor."""
    return workflow.resource_settings.nodes is not None


def experiment_settings(workflow: Workflow) -> tuple[list[Path], dict]:
    """Return the files of `--configfile`, and the changes of `--config`."""
    settings = workflow.config_settings
    return list(settings.configfiles), dict(settings.config)


def end_dry_run(workflow: Workflow) -> bool:
    """Return whether this process ends a dry run that has made its graph."""
    return workflow.is_main_process and workflow.dryrun and workflow.dag is not None
