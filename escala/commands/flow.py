"""From a draft to its answer: what `escala try`, `escala compare` and `escala guard` share."""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from escala.commands import submit
from escala.core import console, environment
from escala.core.arguments import Parser
from escala.core.children import call_escala
from escala.core.console import say
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import write_json, write_text
from escala.draft import answer, trial
from escala.draft import program as draft_program
from escala.draft.file import Draft, text
from escala.experiment import Experiment
from escala.experiment.runs import layout_in_words
from escala.programs.program import PYTHON, count_wrappers
from escala.runtime import allocation, slurm
from escala.workflow.call import add_verbose

#: The user is asked before runs that may take longer.
ASK_SECONDS = 30 * 60
#: A window holds so many periods of steps that recur with other work, such as a rollout.
_PERIODS = 3


def add_options(parser: Parser, sizes: bool = True) -> None:
    """Add the options of a command that measures a program; for `sizes` see `draft.program`."""
    parser.set_defaults(extra=[])
    draft_program.add_options(parser, sizes)
    parser.add_argument(
        "--profile",
        metavar="FOLDER",
        help="Snakemake's profile; default with several nodes: all runs in one job, which this "
        "call submits and waits for. sbatch reads SBATCH_ACCOUNT, SBATCH_PARTITION and others",
    )
    parser.add_argument(
        "--dry", action="store_true", help="show what each configuration would start, and end"
    )
    parser.add_argument(
        "--again", action="store_true", help="measure also what an earlier call has measured"
    )
    parser.add_argument(
        "--yes", action="store_true", help="measure also what may take longer than 30 minutes"
    )
    add_verbose(parser)
    add_file(parser, "--json", "write the answer as schemas/answer.schema.yaml describes it")


def add_file(parser: Parser, option: str, what: str) -> None:
    """Add an option that names a file to write."""
    parser.add_argument(option, metavar="FILE", type=Path, help=f"also {what}")


def require_writable(option: str, file: Path | None) -> None:
    """Refuse a folder, and a file in a folder that is not there, before anything is measured.

    Raises
    ------
    InputError : with the option.
    """
    if file and file.is_dir():
        raise InputError(option, str(file), "is a folder", "name a file in it")
    if file and not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
        reason = f"{file.parent} is no folder that can be written to"
        raise InputError(option, str(file), reason, "make it, or name another file")


def begin(
    drafted: Draft, file: Path, arguments: argparse.Namespace, force: bool
) -> Experiment | None:
    """Say what a draft assumes, and return its experiment; None if --dry asks for no more.

    Raises
    ------
    InputError : the draft, its file or its folder of results cannot be used.
    """
    require_writable("--json", arguments.json)
    experiment = Experiment(drafted.settings, file)
    for program in dict.fromkeys(run.declared.workload.program() for run in experiment.runs):
        starts, *words = program.command[count_wrappers(program.command) :] or ("",)
        script = next((word for word in words if not word.startswith("-")), "")
        is_script = PYTHON.fullmatch(Path(starts).name) and re.fullmatch(r"[^{]+\.py", script)
        if is_script and not Path(program.directory, script).exists():
            raise InputError("command", script, "does not exist", "write its path from this folder")
    if arguments.again and arguments.nodes > 1 and not arguments.profile:
        remedy = f"remove results/{drafted.name}, and make the call without --again"
        raise InputError("--again", None, "is for runs of this machine or of --profile", remedy)
    for sentence in drafted.sentences:
        say(sentence)
    if arguments.dry:
        print("\n".join(trial.describe_starts(experiment)))
        return None
    if arguments.nodes > 1 and not (arguments.profile or allocation.job_number()):
        try:
            slurm.require_controller()
        except InputError as error:
            reason = f"are those of a cluster of SLURM, and here {error.value} {error.reason}"
            remedy = (
                "make the call on a login node or in a job, name hosts (ESCALA_HOSTS), or name no "
                "nodes but processes"
            )
            raise InputError("nodes", arguments.nodes, reason, remedy) from None
    drafted.content(file, force, "--name NAME")
    environment.require_results(Path("results", drafted.name), "name another: --name NAME")
    for sentence in (*trial.describe_isolation(experiment), trial.describe_variables(experiment)):
        say(sentence)
    on_nodes = arguments.profile or arguments.nodes > 1
    here = " on this machine, and not on a node" if on_nodes else ""
    first = trial.first_run(experiment)
    fewest = layout_in_words(first.layout, first.strategy)
    say(f"One run of {fewest}{here}, to see whether the command works.")
    return experiment


def measure(
    drafted: Draft,
    file: Path,
    trials: tuple[trial.Trial, trial.Trial | None],
    arguments: argparse.Namespace,
    threshold: float = 0.0,
) -> tuple[int, dict | None]:
    """Measure a draft that was tried; return an exit code, and the answer if there is one.

    Parameters
    ----------
    threshold : see `escala.analysis.looks.judge_session`.

    Returns
    -------
    The code of `escala run`, or `NO_TIME` if it may take long and nobody agreed. The answer has the
    form of `schemas/answer.schema.yaml`.
    """
    one, several = trials
    if arguments.whole:
        one = replace(one, patterns={})
    elif several and several.patterns != one.patterns:
        say("Lines that seem to tell of steps differ between the two: none is used.")
        one = replace(one, patterns={})
    for workload in drafted.settings["workloads"].values():
        workload.update(one.patterns)
        epochs = workload.get("epochs", trial.EPOCHS)
        if one.is_short(epochs) or (several and several.is_short(epochs)):
            workload.pop("window", None)
        elif "window" in workload and (
            period := max(tried.period for tried in filter(None, trials))
        ):
            workload["window"] = max(workload["window"], math.ceil(_PERIODS * period))
    if "torch-trace" in drafted.settings and (why := trial.why_untraced(one)):
        del drafted.settings["torch-trace"]
        say(f"--why is left out: {why}")
    experiment = Experiment(drafted.settings, file)
    for sentence in trial.report(one, several, experiment):
        say(sentence)
    read = sorted({path for tried in filter(None, trials) for path in tried.read})
    for sentence in draft_program.add_files(drafted, read):
        say(sentence)
    experiment = Experiment(drafted.settings, file)
    write_text(file, text(drafted))
    say(f"Written: {file}")
    _, most = trial.estimate(one, several, experiment)
    if most > ASK_SECONDS and not (arguments.yes or _agrees()):
        words = f"submit {file} --now --wait" if arguments.nodes > 1 else f"run --experiment {file}"
        words += f" --profile {arguments.profile}" if arguments.profile else ""
        remedy = f"{call(words)}" if file.parent == Path() else "the same call with --yes"
        say(f"Nothing is measured yet, because it may take long. To measure: {remedy}")
        return console.NO_TIME, None
    began, results = time.time(), Path("results", drafted.name)
    code = _measure(file, experiment, arguments)
    summary = results / "summary.md"
    if not summary.is_file() or (code and summary.stat().st_mtime < began):
        say("No answer, for the reason above. To go on, make the same call again.")
        return code, None
    return code, answer.read(experiment, file if file.parent == Path() else None, threshold)


def print_answer(content: dict, arguments: argparse.Namespace) -> None:
    """Print the sentences of an answer and the page's path; write all of it for --json."""
    files = content["files"]
    print("\n" + "\n".join(content["sentences"]))
    print(f"Page: {files['page']}, and as text {files['summary']}", flush=True)
    if arguments.json:
        write_json(arguments.json, content)


def _agrees() -> bool:
    """Return whether the user wants to wait; without a terminal nobody is asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print("Measure all runs now? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _measure(file: Path, experiment: Experiment, arguments: argparse.Namespace) -> int:
    """Measure an experiment as `escala run` does, and return its exit code.

    Over several nodes all runs are in one job: both sides of a ratio need the same nodes.
    """
    profile = ["--profile", arguments.profile] if arguments.profile else []
    verbose = ["--verbose"] if arguments.verbose else []
    # This call prints its own answer.
    run = partial(call_escala, "run", stdout=None if verbose else subprocess.DEVNULL)
    given = ["--experiment", str(file), *verbose]
    if profile or arguments.nodes == 1 or allocation.job_number():
        again = ["--again"] if arguments.again else []
        return run(*given, *profile, *again)
    if code := run("prepare", *given):
        return code
    if submit.select_runs(experiment):
        code = call_escala("submit", str(file), "--now", "--wait")
    if code == console.NO_TIME:
        say(f"The job was too short. For the other runs: sbatch results/{experiment.name}/job.sh")
    # Runs that are there are reported, also if the job was cut.
    if any(Path("results", experiment.name).glob("runs/**/run.json")):
        code = run("report", *given) or code
    return code
