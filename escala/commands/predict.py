"""Predict times of layouts, or classes of your own data."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from escala.core.arguments import Parser
from escala.core.environment import call
from escala.core.errors import InputError
from escala.workflow import call as workflow

EXAMPLES = """\
examples:
  escala predict                                    the times of all configurations
  escala predict -e experiments/virus/scaling.yaml  the times of another experiment
  escala predict --run results/fragments/runs/tiles-1000/kmer-logreg reads.fasta
                                                    classify reads.fasta with the trained run there

RUN is a run.json, its folder, or a folder that holds one trained run. Nothing is trained. The last
lines name the table of each FILE: results/EXPERIMENT/predictions/CONFIGURATION/repN/FILE.tsv.
"""


def add(parser: Parser) -> None:
    text = "result to make, results/NAME/predictions/…; with --run, files to classify"
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=text)
    workflow.add_options(parser)
    parser.add_argument("--run", metavar="RUN", help="the trained run that classifies the files")


def run(arguments: argparse.Namespace) -> list[str]:
    """Return the call of Snakemake that predicts times, or classifies files with a run."""
    if arguments.run is None:
        for target in arguments.targets:
            if Path(target).exists() and Path(target).parts[0] != "results":
                classify = call("predict --run RUN", target)
                remedy = f"name the run that classifies it: {classify}"
                raise InputError("TARGET", target, "is a file, and not a result", remedy)
        return workflow.call_of(arguments, arguments.targets or ["predictions"])
    from escala.predict.targets import RULES, predictions

    files = [Path(file) for file in arguments.targets]
    experiment, tables, inputs = predictions(Path(arguments.run), files)
    arguments.experiment = arguments.experiment or _file_of(experiment)
    # The table is always made, most often from the store, so that its counts are printed.
    options = ["--allowed-rules", *RULES, "--forcerun", "predict"]
    settings = ["--config", f"predict={inputs}"]
    arguments.extra = [*options, *arguments.extra, *settings]
    return workflow.call_of(arguments, tables)


def _file_of(name: str) -> str | None:
    """Return the file of an experiment, None if it is the default one."""
    from escala.experiment import find_files

    folder = Path.cwd()
    file = find_files(folder).get(name)
    if file is None:
        reason, remedy = "no file here is this experiment's", "name it: --experiment FILE"
        raise InputError("--run", name, reason, remedy)
    is_default = workflow.is_project(folder) and file == folder / "config.yaml"
    return None if is_default else os.path.relpath(file)
