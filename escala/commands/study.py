"""Measure a scaling study, and write the document to hand in."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from escala.core import environment
from escala.core.arguments import Parser
from escala.core.console import say
from escala.core.environment import call
from escala.core.errors import InputError
from escala.experiment import Experiment, load
from escala.report.study.doublings import doublings, file_of
from escala.workflow import call as workflow

#: The document, in the folder of the experiment.
NAME = "doublings"


EXAMPLES = """\
examples:
  escala study -e experiments/scaling/study-cores.yaml     results/study-cores/study.html
  escala study -e FILE --profile profiles/slurm            on a cluster
  escala study -e FILE --doublings    join what escala submit FILE --one-per-doubling measured
The experiment has the key `scaling`; docs/how-to/study.md describes it.
"""


def add(parser: Parser) -> None:
    text = "join the doublings that escala submit --one-per-doubling measured; measure nothing"
    parser.add_argument("--doublings", action="store_true", help=text)
    workflow.add_options(parser)


def run(arguments: argparse.Namespace) -> list[str] | None:
    """Return the call of Snakemake that makes a study, or join its doublings."""
    if not arguments.doublings:
        return workflow.call_of(arguments, ["study"])
    return join(load(workflow.file_of(arguments)))


def join(e: Experiment) -> None:
    """Join the doublings that `escala submit --one-per-doubling` measured into one document.

    The report of each doubling is written before. The document has the efficiency of each doubling,
    and their products as speed-ups.
    """
    if "scaling" not in e.settings:
        remedy = "write the key `scaling` (docs/how-to/study.md), and submit the doublings again"
        raise e.error("scaling", e.name, "this experiment has no scaling study", remedy)
    files = {name: file_of(e, name) for name in doublings(e)}
    ready = {name: file for name, file in files.items() if _is_reported(name, file)}
    for name in files.keys() - ready.keys():
        say(f"{name}: no runs; left out. Measure it: sbatch results/{name}/job.sh")
    if not ready:
        remedy = call("submit --one-per-doubling --now", e.origin)
        raise InputError("FILE", e.origin, "no doubling was measured", remedy)
    _write(e, ready)


def _is_reported(name: str, file: Path) -> bool:
    """Write the report of a doubling, and return whether it has runs."""
    folder = Path("results", name)
    if not any(folder.glob("runs/**/run.json")):
        return False
    code = _report(file)
    # It also fails where a run has failed: its tables are written before.
    if not (folder / "tables" / "scaling.csv").exists():
        remedy = f"see why: {call('run report -e', file)}"
        raise InputError(file, name, f"its report failed with exit code {code}", remedy)
    return True


def _report(file: Path) -> int:
    words = [sys.executable, "-m", "escala.command", "run", "report", "-e", str(file)]
    return subprocess.run(words, stdout=subprocess.DEVNULL).returncode


def _write(e: Experiment, files: dict[str, Path]) -> None:
    """Write the document of an experiment from its reported doublings."""
    from escala.analysis.measurements import read_run
    from escala.report import study, tables
    from escala.report.figures import common, figure

    parts = []
    for name, file in files.items():
        there = filter(Path.exists, (Path(run.file) for run in load(file).largest.runs))
        frames = tables.read(Path("results", name, "tables"))
        parts.append(study.Part(name, frames, [read_run(path) for path in there]))
    document, joined = study.join(parts, e.title, e.settings["scaling"])
    page = Path("results", e.name, f"{NAME}.html")
    drawing, table = page.with_suffix(".svg"), page.with_suffix(".csv")
    environment.claim_results(page.parent)
    with common.style():
        common.save(figure("scaling").draw(joined), drawing)
    table.write_text(tables.csv(joined["scaling"]), encoding="utf-8")
    study.write(document, page, drawing.read_text(encoding="utf-8"), [table.name, drawing.name])
