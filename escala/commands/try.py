"""Measure your own training script: do more processes, or more threads, pay here?

Write the command after --. It is started as it is, in the working directory. Placeholders in it are
replaced for each run.

Escala writes a small experiment. It tries the command in one process, and in several processes: one
on each core. Then it measures one process on one core, the several processes, and one process with
a thread on each core. At the end it prints the answer.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from escala.commands import submit
from escala.core import console, environment
from escala.core.arguments import Parser
from escala.core.children import die_with_parent
from escala.core.console import say
from escala.core.environment import call
from escala.core.files import write_text
from escala.core.readable import in_words
from escala.draft import program as draft_program
from escala.draft import trial
from escala.draft.command import EXAMPLE
from escala.draft.file import Draft, text
from escala.experiment import Experiment
from escala.experiment.runs import layout_in_words
from escala.programs.program import PLACEHOLDERS
from escala.runtime import slurm

#: Before runs that may take longer, the user is asked.
ASK_SECONDS = 30 * 60
#: Without these, Snakemake prints the files of each job.
_QUIET = ("--", "--quiet", "rules", "reason")
EXAMPLES = f"""\
examples:
  escala try -- python train.py                       one core and several cores for one process
  escala try -- python train.py --batch {{rows_of_rank}} --epochs {{epochs}} --rank {{rank}}
                                                      plain processes, which the command numbers
  escala try --torch -- python train.py --batch {{rows_of_rank}}
                                                      PyTorch's DistributedDataParallel
  escala try -- torchrun --nproc-per-node 4 train.py  the same: torchrun is left out, and said
  escala try --mpi -- python simulate.py              mpi4py, or any program of MPI
  escala try --horovod --python ~/venv/bin/python -- python train.py --batch {{rows_of_rank}}
  escala try --launcher -- {EXAMPLE}
  escala try --regex 'epoch \\d+: loss (?P<loss>\\S+)' -- python train.py
  escala try --data reads=~/reads -- ./train.sh {{data.reads}} {{output}}
  escala try --dry --torch -- python train.py         what would start, and nothing is started

placeholders:
{chr(10).join(f"  {{{name}}}".ljust(18) + what for name, what in PLACEHOLDERS.items())}
  {{data.NAME}}     the path of --data NAME=PATH

Epochs and steps are known from lines of the output (--epoch-ends, --step-ends), or from the script,
by a module that every run finds:
  from escala_steps import steps, epoch
  for batch in steps(loader): …             then epoch(loss=…) after each epoch
Otherwise the time of whole runs is compared.

The file escala-NAME.yaml stays. Change it, and measure it again: escala run -e escala-NAME.yaml.
Results are in results/NAME/ of the working directory.
"""


def add(parser: Parser) -> None:
    parser.usage = "escala try [OPTION …] -- COMMAND …"
    parser.set_defaults(extra=[])
    draft_program.add_options(parser)
    parser.add_argument(
        "--profile",
        metavar="FOLDER",
        help="Snakemake's profile; default with --nodes: all runs in one job, which this call "
        "submits and waits for. sbatch reads SBATCH_ACCOUNT, SBATCH_PARTITION and others",
    )
    parser.add_argument(
        "--dry", action="store_true", help="show what each configuration would start, and end"
    )
    parser.add_argument("--force", action="store_true", help="replace another escala-NAME.yaml")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    # What stands after -- is the command, also where it looks like an option.
    arguments.command, arguments.extra = [*arguments.command, *arguments.extra], []
    drafted = draft_program.draft(arguments.command, arguments)
    try:
        return _try(drafted, arguments)
    except trial.NeedsSeveral as error:
        # The fewest that work are the base, and one process is compared with nothing.
        arguments.baseline += 1
        base = f"{in_words(arguments.baseline)} processes are the base"
        say(f"{error.reason}. So {base}: --baseline {arguments.baseline}.")
        return run(arguments)


def _try(drafted: Draft, arguments: argparse.Namespace) -> int:
    """Try a drafted experiment, measure it and print the answer; return the exit code."""
    typed, file = drafted.typed, draft_program.file_of(drafted.name)
    content = file.read_text(encoding="utf-8", errors="replace") if file.exists() else None
    if typed and content == text(typed):
        # An earlier call found that the command works only as it is typed.
        drafted, typed = typed, None
    experiment = Experiment(drafted.settings, file)
    for sentence in drafted.sentences:
        say(sentence)
    if arguments.dry:
        print("\n".join(trial.describe_starts(experiment)))
        return 0
    drafted.content(file, arguments.force, "--name NAME")
    environment.require_results(Path("results", drafted.name), "name another: --name NAME")
    for sentence in (*trial.describe_isolation(experiment), trial.describe_variables(experiment)):
        say(sentence)
    on_nodes = arguments.profile or arguments.nodes > 1
    here = " on this machine, and not on a node" if on_nodes else ""
    fewest = layout_in_words(experiment.runs[0].layout, experiment.runs[0].strategy)
    say(f"One run of {fewest}{here}, to see whether the command works.")
    as_typed = Experiment(typed.settings, file) if typed else None
    one, several, refused = trial.try_as_typed(as_typed, experiment)
    if refused:
        say(
            f"It works as it is typed, and not with this strategy: {refused.reason}. So only "
            f"threads are compared. To compare processes: {refused.remedy}, and name the strategy "
            "with --strategy."
        )
        drafted, experiment = typed, as_typed
    if arguments.whole or (several and several.patterns != one.patterns):
        one = replace(one, patterns={})
    [workload] = drafted.settings["workloads"].values()
    workload.update(one.patterns)
    for sentence in trial.report(one, several, experiment):
        say(sentence)
    read = sorted({*one.read, *(several.read if several else ())})
    for sentence in draft_program.add_files(drafted, read):
        say(sentence)
    experiment = Experiment(drafted.settings, file)
    write_text(file, text(drafted))
    say(f"Written: {file}")
    _, most = trial.estimate(one, several, experiment)
    if most > ASK_SECONDS and not _agrees():
        words = f"submit {file} --now --wait" if arguments.nodes > 1 else f"run --experiment {file}"
        words += f" --profile {arguments.profile}" if arguments.profile else ""
        say(f"Nothing is measured yet, because it may take long. To measure: {call(words)}")
        return console.NO_TIME
    began = time.time()
    code = _measure(file, experiment, arguments)
    _print_answer(Path("results", drafted.name), file, 0 if code == 0 else began)
    return code


def _agrees() -> bool:
    """Return whether the user wants to wait. Without a terminal the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print("Measure all runs now? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _measure(file: Path, experiment: Experiment, arguments: argparse.Namespace) -> int:
    """Measure an experiment as `escala run` does, and return its exit code.

    Runs over several nodes are all in one job: both sides of a ratio need the same nodes.
    """
    profile = ["--profile", arguments.profile] if arguments.profile else []
    if profile or arguments.nodes == 1 or slurm.job_number():
        return _call("run", "--experiment", str(file), *profile, *_QUIET)
    if code := _call("run", "prepare", "--experiment", str(file), *_QUIET):
        return code
    if submit.select_runs(experiment):
        code = _call("submit", str(file), "--now", "--wait")
    if code == console.NO_TIME:
        say(f"The job was too short. For the other runs: sbatch results/{experiment.name}/job.sh")
    # Existing runs are reported even if the job was too short.
    if any(Path("results", experiment.name).glob("runs/**/run.json")):
        code = _call("run", "report", "--experiment", str(file), *_QUIET) or code
    return code


def _call(*words: str) -> int:
    """Call a subcommand of `escala`, and return its exit code."""
    command = [sys.executable, "-m", "escala.command", *words]
    process = subprocess.Popen(command, preexec_fn=functools.partial(die_with_parent, os.getpid()))
    try:
        return console.shell_code(process.wait())
    finally:
        # On Ctrl-C the subcommand gets the signal, too. It ends its runs before it ends.
        if process.poll() is None:
            process.terminate()
            process.wait()


def _print_answer(results: Path, file: Path, since: float) -> None:
    """Print the first lines of the summary, if it was written since a time, and the page's path."""
    summary = results / "summary.md"
    if not summary.is_file() or summary.stat().st_mtime < since:
        say(f"No answer, for the reason above. To go on: {call('run --experiment', file)}")
        return
    print("\n" + "\n".join(trial.read_answer(summary)))
    print(f"Page: {results}/index.html, and as text {summary}", flush=True)
