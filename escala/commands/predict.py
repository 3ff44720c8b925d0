"""Predict times of layouts, or classes of your own data."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from escala.core.arguments import Parser
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_json
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

#: The rules that Snakemake may run for a prediction. None of them trains.
RULES = ("predict", "familiarity", "length_errors")
#: Suffixes that may follow the suffix of the format.
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
#: Parts of the path of a run's folder: results/EXPERIMENT/runs/, six names, the repeat.
_DEPTH = 10
#: Maximum number of runs in a message.
_LISTED = 8


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
    files = [Path(file) for file in arguments.targets]
    experiment, tables, inputs = predictions(Path(arguments.run), files)
    arguments.experiment = arguments.experiment or _file_of(experiment)
    # The table is made at each call, mostly from the store, so that its counts are printed.
    options = ["--allowed-rules", *RULES, "--forcerun", "predict"]
    settings = ["--config", f"predict={inputs}"]
    arguments.extra = [*options, *arguments.extra, *settings]
    return workflow.call_of(arguments, tables)


def _file_of(name: str) -> str | None:
    """Return the file of an experiment; None for the default experiment."""
    from escala.experiment import find_files

    folder = Path.cwd()
    file = find_files(folder).get(name)
    if file is None:
        reason, remedy = "no file here is this experiment's", "name it: --experiment FILE"
        raise InputError("--run", name, reason, remedy)
    is_default = workflow.is_project(folder) and file == folder / "config.yaml"
    return None if is_default else os.path.relpath(file)


def predictions(run: Path, files: Sequence[Path]) -> tuple[str, list[str], str]:
    """Return the experiment's name, the path of a table for each file, and `predict` as JSON.

    The last one is the value of the experiment's key `predict`.

    Parameters
    ----------
    run : a `run.json`, its folder, or a folder above with exactly one trained run. It must be below
        `results/` in the working directory.
    files : files in the format of the dataset's kind.

    Raises
    ------
    InputError : there is no file, a file is missing, or `run` is not exactly one trained run.
    """
    _, experiment, _, *names, repeat = find_run(run).parts
    if not files:
        remedy = call("predict --run", run, "reads.fasta")
        raise InputError("FILE", None, "is missing", remedy)
    if missing := [str(file) for file in files if not file.exists()]:
        raise InputError("FILE", ", ".join(missing), "no such file", "name existing files")
    inputs = {}
    for name, file in name_tables(files).items():
        # An experiment expands `~` and variables, but in the name of a file they are plain
        # characters.
        path = file.absolute() if str(file).startswith("~") else file
        inputs[name] = str(path).replace("$", "$$")
    folder = Path("results", experiment, "predictions", *names, repeat)
    tables = [str(folder / f"{name}.tsv") for name in inputs]
    return experiment, tables, json.dumps({"inputs": inputs}, ensure_ascii=False)


def find_run(run: Path) -> Path:
    """Return the folder of the only trained run at or below a path, from `results/` on."""
    folder = Path(os.path.relpath(run.parent if run.name == "run.json" else run))
    if not folder.is_dir():
        raise InputError("--run", str(run), "no such run", "name a folder below results/")
    parents = sorted(file.parent for file in folder.glob("**/run.json"))
    runs = [path for path in parents if path.parts[0] == "results" and len(path.parts) == _DEPTH]
    from escala.workloads.models import DESCRIPTION

    trained = []
    for path in runs:
        with suppress(ValueError, KeyError, TypeError):
            if (path / DESCRIPTION).exists() and read_json(path / "run.json")["status"] == "ok":
                trained.append(path)
    if len(trained) == 1:
        return trained[0]
    remedy = "name the folder of a run below results/ that ended ok with save_model: true"
    reason = f"of {len(runs)} runs here none ended ok with a model" if runs else "no run is here"
    if trained:
        more = f" and {len(trained) - _LISTED} more" if len(trained) > _LISTED else ""
        listed = ", ".join(map(str, trained[:_LISTED]))
        reason, remedy = f"{len(trained)} trained runs fit: {listed}{more}", "name one of them"
    raise InputError("--run", str(run), reason, remedy)


def name_tables(files: Sequence[Path]) -> dict[str, Path]:
    """Return the files by the names of their tables.

    A table has the name of its file without suffixes. If several files have one name, names of
    their folders come before it.

    Raises
    ------
    InputError : two files would have the same table.
    """
    stems = [
        file.with_suffix("").stem if file.suffix in COMPRESSED else file.stem for file in files
    ]
    uses = Counter(map(_table_name, stems))
    names = [
        _table_name(stem if uses[_table_name(stem)] == 1 else "-".join([*file.parent.parts, stem]))
        for file, stem in zip(files, stems, strict=True)
    ]
    name, number = Counter(names).most_common(1)[0]
    if number > 1:
        reason = f"several files would have the table {name}.tsv"
        raise InputError("FILE", ", ".join(map(str, files)), reason, "predict them one by one")
    return dict(zip(names, files, strict=True))


def _table_name(text: str) -> str:
    """Return a text as the name of a table: at most 64 letters, digits, `-` and `_`."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[-64:].strip("-_") or "query"
