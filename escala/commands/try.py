"""Measure your own training script: do more processes, or more threads, pay here?

Write the command after --. It is started as it is, in the working directory. Placeholders in it are
replaced for each run.

Escala writes a small experiment. It tries the command in one process, and in several processes: one
on each core. Then it measures one process on one core, the several processes, and one process with
a thread on each core. At the end it prints the answer.
"""

from __future__ import annotations

import argparse

from escala.commands import flow
from escala.core import console
from escala.core.arguments import Parser
from escala.core.console import say
from escala.core.errors import InputError
from escala.core.readable import in_words
from escala.draft import change, sweep, trial
from escala.draft import program as draft_program
from escala.draft.command import EXAMPLE
from escala.draft.file import Draft, text
from escala.experiment import Experiment
from escala.programs.program import PLACEHOLDERS

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
  escala try --sweep rows=16,64,256 --torch -- python train.py --batch {{rows_of_rank}}
                                                      from which batch on do processes pay?
  escala try --apply -- python train.py               and what do such changes gain?
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
    flow.add_options(parser)
    parser.add_argument(
        "--sweep", type=sweep.parse, metavar="NAME=N,N",
        help="also find where more processes begin to pay: measure with these values of {rows} or "
        "{epochs}, or of the option --NAME of the command",
    )  # fmt: skip
    parser.add_argument(
        "--apply", action="store_true",
        help="also measure what the trial suggests to change, each as a configuration: memory that "
        "stays, a worker for each loader",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace another escala-NAME.yaml")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    # What stands after -- is the command, also where it looks like an option.
    arguments.command, arguments.extra = [*arguments.command, *arguments.extra], []
    if arguments.apply and arguments.sweep:
        reason = "is for one size of a program"
        raise InputError("--apply", None, reason, "leave out --sweep, or --apply")
    drafted = draft_program.draft(arguments.command, arguments)
    if arguments.sweep:
        drafted = sweep.vary(drafted, arguments.sweep)
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
    typed, file = drafted.as_typed, draft_program.file_of(drafted.name)
    content = file.read_text(encoding="utf-8", errors="replace") if file.exists() else None
    is_typed = typed and (
        content == text(typed) or (arguments.apply and change.is_applied(typed, file))
    )
    if is_typed:
        # An earlier call found that the command works only as it is typed.
        drafted, typed = typed, None
    force = arguments.force or (arguments.apply and change.is_applied(drafted, file))
    experiment = flow.begin(drafted, file, arguments, force)
    if not experiment:
        return console.DONE
    as_typed = Experiment(typed.settings, file) if typed else None
    one, several, refused = trial.try_as_typed(as_typed, experiment)
    if refused:
        say(
            f"It works as it is typed, and not with this strategy: {refused.reason}. So only "
            f"threads are compared. To compare processes: {refused.remedy}, and name the strategy "
            "with --strategy."
        )
        drafted = typed
    if arguments.apply:
        for sentence in change.add(drafted, filter(None, (one, several))):
            say(sentence)
    code, content = flow.measure(drafted, file, (one, several), arguments)
    if content and arguments.sweep:
        rows = content["sweep"] = sweep.judge(content, arguments.sweep)
        print("", *sweep.table(rows, experiment), sep="\n")
        content["sentences"] = [sweep.sentence(rows, experiment), *content["sentences"]]
    if content:
        flow.print_answer(content, arguments)
    return code
