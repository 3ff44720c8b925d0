"""Measure a scaling study, and write the document to hand in."""

from __future__ import annotations

import argparse

from escala.core.arguments import Parser
from escala.workflow import call as workflow

EXAMPLES = """\
examples:
  escala study -e experiments/scaling/study-cores.yaml     writes results/study-cores/study.html
  escala study -e FILE --profile profiles/slurm            on a cluster
The experiment has the key `scaling`; docs/how-to/study.md describes it.
"""


def add(parser: Parser) -> None:
    workflow.add_options(parser)


def run(arguments: argparse.Namespace) -> list[str]:
    """Return the call of Snakemake that makes the document of a study."""
    return workflow.call_of(arguments, ["study"])
