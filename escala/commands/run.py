"""Measure an experiment, or make single results of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala.core.arguments import Parser
from escala.core.environment import call
from escala.core.errors import InputError
from escala.workflow import call as workflow

EXAMPLES = """\
examples:
  escala run                                        the default experiment
  escala run -e experiments/virus/ladder.yaml -n    what would run, and how long
  escala run results/demo/runs/demo-1000/virus-cnn/single/1x1/tuned/native/rep1/run.json
  escala run --profile profiles/slurm               the runs are measured in a job of SLURM
  escala run --again                                measure all of it a second time
  escala run -- --keep-incomplete                   arguments after -- are for Snakemake
"""


def add(parser: Parser) -> None:
    text = "result to make, such as the run.json of one configuration; default: all"
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=text)
    workflow.add_options(parser)


def run(arguments: argparse.Namespace) -> list[str]:
    """Return the call of Snakemake that makes targets, by default a whole experiment."""
    for target in arguments.targets:
        if target.endswith(".yaml") and Path(target).is_file():
            remedy = f"name it as an experiment: {call('run -e', target)}"
            raise InputError("TARGET", target, "is an experiment, and not a result", remedy)
    return workflow.call_of(arguments, arguments.targets)
