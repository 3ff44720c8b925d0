"""Measure a scaling study, and write the document to hand in.

It is the study of an experiment with the key `scaling`. Or, with --sizes, it is one of your own
script: write its command after --. Escala tries the script on this machine, writes the experiment
escala-NAME.yaml, and measures all sizes in turns: those of several nodes in one job of SLURM, which
this call submits and waits for. Inside a job, the runs are steps of that job.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from escala.commands import flow
from escala.core import console
from escala.core.arguments import Parser, whole_number
from escala.draft import program as draft_program
from escala.draft import study as draft_study
from escala.draft import trial
from escala.workflow import call as workflow

EXAMPLES = """\
examples:
  escala study -e experiments/scaling/study-cores.yaml     writes results/study-cores/study.html
  escala study -e FILE --profile profiles/slurm            on a cluster
  escala study --sizes 1,2,4,8 -- torchrun --nproc-per-node 4 train.py    nodes of a cluster
  escala study --sizes 1x1,1x2,1x4 --torch -- python train.py    processes of this machine

docs/how-to/study.md describes the document, and the key `scaling`.
"""


def add(parser: Parser) -> None:
    parser.usage = (
        "escala study -e FILE [OPTION …] | escala study --sizes N,N… [OPTION …] -- COMMAND …"
    )
    sizes = parser.add_argument(
        "--sizes", type=draft_study.parse_sizes, metavar="N,N…", default=argparse.SUPPRESS,
        help="of your own script: numbers of nodes, or layouts NODESxPROCESSES; options of the "
        "script: escala study --sizes 1,2 --help",
    )  # fmt: skip
    # Programs have other options.
    if not any(word.partition("=")[0] == "--sizes" for word in sys.argv[1:]):
        workflow.add_options(parser)
        return
    sizes.help = "numbers of nodes, such as 1,2,4; or layouts NODESxPROCESSES, such as 1x1,1x2"
    flow.add_options(parser, sizes=False)
    parser.set_defaults(baseline=1, minutes=None)
    parser.add_argument("--force", action="store_true", help="replace another escala-NAME.yaml")
    parser.add_argument(
        "--repeats", type=whole_number, default=draft_study.REPEATS, metavar="N",
        help=f"repeats of each size; default: {draft_study.REPEATS}; a verdict needs five",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int | list[str]:
    """Measure the study of a program; or return the call of Snakemake for that of an experiment."""
    if "sizes" not in arguments:
        return workflow.call_of(arguments, ["study"])
    arguments.nodes = draft_study.count_nodes(arguments.sizes)
    drafted = draft_study.draft(arguments.extra, arguments)
    file = draft_program.file_of(drafted.name)
    experiment = flow.begin(drafted, file, arguments, arguments.force)
    if not experiment:
        return console.DONE
    one, several, _ = trial.try_as_typed(None, experiment)
    code, content = flow.measure(drafted, file, (one, several), arguments)
    document = Path("results", drafted.name, "study.md")
    if content and document.is_file():
        content["sentences"] = read_statements(document)
        content["files"]["study"] = str(document.with_suffix(".html"))
        flow.print_answer(content, arguments)
        print(f"To hand in: {content['files']['study']}", flush=True)
    return code


def read_statements(document: Path) -> list[str]:
    """Return the paragraph on each series of a study, from its document as Markdown."""
    text = document.read_text(encoding="utf-8")
    return re.findall(r"^## (?:Strong|Weak) scaling .+\n\n(.+)$", text, re.MULTILINE)
