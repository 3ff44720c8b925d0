"""The undocumented functions of Snakemake that this project uses, for the tested versions.

No other module uses them (`tests/unit/test_workflow_package.py`).
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from pathlib import Path

from snakemake import cli, exceptions  # cli first: other modules form a circle of imports.
from snakemake.api import Workflow
from snakemake.dag import DAG
from snakemake.jobs import Job
from snakemake.logging import logger
from snakemake.settings.enums import RerunTrigger
from snakemake_interface_logger_plugins.common import LogEvent

from escala.core import console

#: The last lines of the log of a failed job that `print_little` prints.
_LINES = 20
#: The workflows whose rules this process has read.
_workflows: list[Workflow] = []


def note(workflow: Workflow) -> None:
    """Remember the workflow whose rules this process reads, for messages on errors."""
    _workflows.append(workflow)


def jobs(dag: DAG, *rules: str, needed: bool = False) -> Iterator[Job]:
    """Yield the jobs of some rules, or of all rules; with `needed`, only jobs that will run."""
    for job in dag.jobs:
        if (not rules or job.rule.name in rules) and (not needed or dag.needrun(job)):
            yield job


def triggers_left_out(workflow: Workflow) -> list[str]:
    """Return the rerun triggers that a call leaves out (`--rerun-triggers`)."""
    triggers = RerunTrigger.all() - workflow.dag_settings.rerun_triggers
    return sorted(trigger.item_to_choice() for trigger in triggers)


def targets(workflow: Workflow) -> set[str]:
    """Return the targets of a call, rules and files; none while the rules are being read."""
    return set(map(str, workflow.dag_settings.targets)) if workflow.dag_settings else set()


def targets_to_force(workflow: Workflow) -> set[str]:
    """Return the rules and files that a call must make again; `all` for all rules."""
    settings = workflow.dag_settings
    return set(map(str, settings.forcerun)) | ({"all"} if settings.forceall else set())


def forget(workflow: Workflow, file: str) -> None:
    """Remove the record of Snakemake on how a file was made."""
    workflow.persistence.cleanup_metadata(file)


def watch_submissions() -> list[str]:
    """Return a list that will hold the name of the jobs that this call submits to SLURM."""
    names = []

    def read(record: logging.LogRecord) -> bool:
        names.extend(re.findall(r"^SLURM run ID: (\S+)", str(record.msg)))
        return True

    logger.addFilter(read)
    return names


def leave_out_failed_jobs(when: Callable[[], bool]) -> None:
    """Let Snakemake print nothing on failed jobs while `when()` is true: after an interrupt."""

    def is_printed(record: logging.LogRecord) -> bool:
        is_rule_error = getattr(record, "exception", None) == exceptions.RuleException.__name__
        return (
            not (is_rule_error or getattr(record, "event", None) is LogEvent.JOB_ERROR)
            or not when()
        )

    logger.addFilter(is_printed)


def print_little(show: Callable[[str], None]) -> None:
    """Let Snakemake print errors and warnings only; its log has all lines.

    A failed job prints the end of its log, unless that was printed.

    Parameters
    ----------
    show : gets a line when a job begins, or when it would begin after a dry run.
    """
    jobs, begun = 0, 0

    def is_printed(record: logging.LogRecord) -> bool:
        nonlocal jobs, begun
        event, text = getattr(record, "event", None), str(record.msg)
        if event is LogEvent.RUN_INFO:
            jobs = record.stats["total"]
        elif event is LogEvent.JOB_INFO:
            begun += 1
            show(f"Step {begun} of {jobs}: {record.rule_msg or record.rule_name}")
        elif event is LogEvent.JOB_ERROR:
            logs = [file for file in map(Path, record.log) if file.exists()]
            ends = [log.read_text(errors="replace").splitlines()[-_LINES:] for log in logs]
            # A job has printed such a line at once.
            ends = [lines for lines in ends if lines and not lines[-1].startswith("escala: ")]
            files = [file.baseFilename for file in logger.handlers if hasattr(file, "baseFilename")]
            told = f"the step {record.rule_name} failed. Logs: {', '.join([*record.log, *files])}"
            console.say("\n".join(sum(ends, [told])))
        elif "submitted with SLURM" in text or text.startswith("Nothing to be done"):
            console.say(text)
        is_rule_error = getattr(record, "exception", None) == exceptions.RuleException.__name__
        return (
            record.levelno >= logging.WARNING
            and event is not LogEvent.JOB_ERROR
            and not is_rule_error
        )

    def add(record: logging.LogRecord) -> bool:
        for handler in logger.handlers:
            if handler.name == "DefaultStreamHandler" and is_printed not in handler.filters:
                handler.addFilter(is_printed)
        return True

    logger.addFilter(add)


def uses_cluster(workflow: Workflow) -> bool:
    """Return whether jobs go to a cluster. In a dry run, return whether they would."""
    return workflow.resource_settings.nodes is not None


def experiment_settings(workflow: Workflow) -> tuple[list[Path], dict]:
    """Return the files of `--configfile`, and the changes of `--config`."""
    settings = workflow.config_settings
    return list(settings.configfiles), dict(settings.config)


def is_end_of_dry_run(workflow: Workflow) -> bool:
    """Return whether this process ends a dry run whose graph of jobs was made without an error."""
    if not (workflow.is_main_process and workflow.dryrun and workflow.dag is not None):
        return False
    with suppress(KeyError):  # Jobs have numbers only after all jobs are known.
        return bool([workflow.dag.jobid(job) for job in workflow.dag.jobs])
    return False


def call(
    words: Sequence[str],
    tell: Callable[[Exception, Collection[str]], bool],
    refusal: Callable[[str, Collection[str]], Exception],
) -> int | str | None:
    """Make a call of Snakemake in this process; return the exit code, or the message that ends it.

    Parameters
    ----------
    tell : prints an error, and returns whether it printed it. It also gets the names of the rules
        that may be targets. Before the rules are read, there are no names.
    refusal : returns an error for Snakemake's message on words, or on keys of a profile, that
        Snakemake cannot read. It also gets all options.
    """

    def is_printed(record: logging.LogRecord) -> bool:
        """Return whether Snakemake prints a message; `tell` may have printed its error already."""
        error = sys.exc_info()[1]
        if getattr(record, "exception", None) != type(error).__name__:
            return True
        rules = [rule for workflow in _workflows for rule in workflow.rules]
        return not tell(error, [rule.name for rule in rules if not rule.has_wildcards()])

    logger.addFilter(is_printed)
    try:
        parser, arguments = _parse(words, refusal)
        return console.DONE if cli.args_to_api(arguments, parser) else console.FAILED
    except SystemExit as end:
        return end.code
    except Exception as error:
        exceptions.print_exception(error)
        return console.FAILED
    finally:
        logger.removeFilter(is_printed)


def _parse(words: Sequence[str], refusal: Callable[[str, Collection[str]], Exception]) -> tuple:
    """Return the parser of words, and the arguments that it reads; see `call`."""
    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            result = cli.parse_args(words)
    except SystemExit as end:
        if end.code:
            text = printed.getvalue()
            message = re.search(r"(?:: e|^E)rror: (.*)", text, re.DOTALL | re.MULTILINE)
            options = re.findall(r"\[(--[\w-]+)", text)
            raise refusal((message[1] if message else text).strip(), options) from None
        raise
    if console.BRIEF not in os.environ:
        sys.stderr.write(printed.getvalue())
    return result
