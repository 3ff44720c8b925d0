"""Print what this machine can run: a sentence, then each check with yes, or no and the remedy.

Inside a job of SLURM, further checks tell what the site gives. A no is not an error: the exit code
is 0. With the folder of a workload of your own, each part of its contract is checked instead, and
the exit code is 1 if any answer is no.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from escala.check import job, machine
from escala.cli import json_or_file
from escala.core import console
from escala.core.arguments import Parser
from escala.core.engines import ENGINES
from escala.core.errors import Answer
from escala.core.readable import with_noun
from escala.lab import cluster

# The check of the lab is added here, because `escala.check` and `escala.lab` do not import each
# other.
machine.check("lab", "docs/how-to/lab.md says what it needs")(cluster.abilities)

EXAMPLES = """\
examples:
  escala check                       what this machine can run, with a remedy for each no
  srun --ntasks=1 escala check       a node of a cluster
  escala check examples/my_workload  a workload of your own
"""


def add(parser: Parser) -> None:
    parser.add_argument(
        "folder", nargs="?", type=Path, help="a workload of your own: its folder with workload.yaml"
    )
    workload = parser.add_argument_group("of a workload")
    workload.add_argument(
        "--dataset",
        type=Path,
        metavar="SPLIT",
        help="folder of a dataset.json, whose first rows are used; otherwise rows are drawn at "
        "random from the example in workload.yaml",
    )
    workload.add_argument(
        "--engine", choices=ENGINES, help="the one that trains; default: the first with a network"
    )
    text = "folder of the dataset's kind, if it is your own"
    workload.add_argument("--kind", type=Path, help=text)
    workload.add_argument(
        "--settings",
        type=json_or_file,
        default={},
        metavar="JSON",
        help="settings of the workload in an experiment",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.folder:
        from escala.check.workload import answers

        with tempfile.TemporaryDirectory() as scratch:
            given = [*answers(scratch=Path(scratch), **vars(arguments))]
        able = all(answer.able for answer in given)
        count = with_noun(len(given), "check")
        print(
            f"This workload can{'' if able else 'not'} be measured, by {count}.", *given, sep="\n"
        )
        return console.DONE if able else console.FAILED
    checks = [*machine.CHECKS, *(job.CHECKS if job.in_a_job() else [])]
    given = [*machine.answers(checks)]
    print(summarize(given), *given, sep="\n")
    return console.DONE


def summarize(answers: Sequence[Answer]) -> str:
    """Return a sentence on what a machine can run, by the answers of all checks."""
    no = [answer.name for answer in answers if not answer.able]
    # The compiler is for the installation of TensorFlow.
    mend = {"cores", "MPI", *(["C++ compiler"] if "TensorFlow" in no else [])} & set(no)
    first = "This machine can run the default experiment"
    if mend:
        needs = [f"two {name}" if name == "cores" else name for name in sorted(mend)]
        first = f"This machine cannot run the default experiment without {', '.join(needs)}"
    # An engine is installed when it is needed.
    made = {engine.title for engine in ENGINES.values()}
    others = [name for name in no if name not in mend | made]
    return first + f"; others may need {', '.join(others)}" * bool(others) + "."
