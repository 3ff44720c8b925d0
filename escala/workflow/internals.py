"""All that this project uses of Snakemake beyond its documentation, for the tested versions.

No other module does (`tests/unit/test_workflow_package.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from snakemake import cli, exceptions  # First: the others import each other in a circle.
from snakemake.api import SnakemakeApi, Workflow
from snakemake.dag import DAG
from snakemake.jobs import Job
from snakemake.settings.enums import RerunTrigger

_argument_parser = cli.get_argument_parser


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


def forced(workflow: Workflow) -> set[str]:
    """Return the rules and files that a call makes again whatever there is; `all` for all."""
    settings = workflow.dag_settings
    return set(map(str, settings.forcerun)) | ({"all"} if settings.forceall else set())


def forget(workflow: Workflow, file: str) -> None:
    """Remove what Snakemake remembers of how a file was made."""
    workflow.persistence.cleanup_metadata(file)


def submitted_name(workflow: Workflow) -> str | None:
    """Return the name of all jobs that this call has submitted to SLURM, if it submits any."""
    executor = workflow.scheduler._executor if workflow.scheduler else None
    return getattr(executor, "run_uuid", None)


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
