"""Write results/NAME/report.html: all figures, tables and captions of an experiment in one file.

It is Snakemake's report on the measured runs. `escala run` writes the page,
results/NAME/index.html, and the tables; `escala run report` writes them of the existing runs.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from escala.core.arguments import Parser
from escala.core.console import say
from escala.core.errors import InputError
from escala.workflow import call as workflow

#: A file of the results. It exists only after the experiment was run.
SUMMARY = "summary.md"
EXAMPLES = """\
examples:
  escala report                                     writes results/demo/report.html
  escala report -e experiments/virus/ladder.yaml    writes results/ladder/report.html
"""


def add(parser: Parser) -> None:
    workflow.add_verbose(parser)
    workflow.add_experiment(parser)


def run(arguments: argparse.Namespace) -> list[str]:
    """Return the call of Snakemake that writes the report of an experiment again."""
    from escala import experiment

    file = workflow.file_of(arguments)
    name = experiment.load(file).name
    if not Path(f"results/{name}/{SUMMARY}").is_file():
        remedy = "run it first: escala run"
        remedy += f" -e {shlex.quote(file)}" * bool(arguments.experiment)
        raise InputError("--experiment", file, "has no results yet", remedy)
    say(f"Writing results/{name}/report.html")
    options = ["--cores", "1", "--report", f"results/{name}/report.html"]
    return workflow.call_of(arguments, options)
