"""Print what this machine can run: each check with yes or no, and the remedy for a no.

Inside a job of SLURM, further checks tell what the site gives. A no is not an error: the exit code
is 0. With the folder of a workload of your own, each part of its contract is checked instead, and
the exit code is 1 if any answer is no.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from escala.check import job, machine
from escala.cli import json_or_file
from escala.core import console
from escala.core.arguments import Parser
from escala.core.engines import ENGINES
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


def run(arguments: argparse.Namespace) -> int | None:
    if arguments.folder:
        from escala.check.workload import answers

        able = True
        with tempfile.TemporaryDirectory() as scratch:
            for answer in answers(scratch=Path(scratch), **vars(arguments)):
                print(answer, flush=True)
                able &= answer.able
        return console.DONE if able else console.FAILED
    checks = [*machine.CHECKS, *(job.CHECKS if job.in_a_job() else [])]
    for answer in machine.answers(checks):
        print(answer, flush=True)
