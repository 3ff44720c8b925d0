"""The console command `escala`: each subcommand is the module of its name in `escala.commands`.

A module is imported only if its subcommand is called.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import argcomplete

from escala import cli
from escala.core import console, environment
from escala.core.arguments import Parser
from escala.workflow.call import ROOT, is_project, make

#: The subcommands, with one sentence on each.
COMMANDS = {
    "run": "measure an experiment, or make single results of it",
    "report": "write report.html, all figures and tables of an experiment in one file",
    "predict": "predict times of layouts, or classes of your own data",
    "study": "measure a scaling study, and write the document to hand in",
    "try": "measure your own training script: do more processes, or more threads, pay?",
    "compare": "measure two commands in turns: which takes less time?",
    "guard": "measure two commits of a git repository in turns: is the second slower?",
    "submit": "measure an experiment in one job of SLURM: write its script, or submit it",
    "advise": "recommend a layout for a goal, from measurements and predictions",
    "lab": "run a SLURM cluster on this machine, with links of a selected rate",
    "history": "keep measurements of many sessions and machines, and query them",
    "measure": "measure the incomplete runs of a plan of escala run, without Snakemake",
    "retry": "remove the failed runs of results/NAME, so that the next call repeats them",
    "store": "show, check or clean what is stored",
    "check": "show what this machine can run, or check a workload of your own",
    "why": "tell where the time of a step goes, from the traces of any training",
    "install": "make the environment of an engine before its use, or compile operations in C++",
    "new": "write the file of an experiment, from a few questions or from options",
    "completion": "print the completion of this command for a shell",
}
TEACHING = f"""\
the most common things:
  escala try -- python train.py          your own script: do more processes or threads pay?
  escala compare -- python a.py --- python b.py   two commands: which takes less time?
  escala guard main HEAD -- python train.py       two commits: is the second slower?
  escala run                             the default experiment: does a second process pay here?
  escala submit experiments/NAME.yaml    a cluster: all its runs in one job
  escala check                           what this machine can run
  escala new                             write an experiment on your own data
  escala run -e experiments/NAME.yaml -n show what would run, and how long
  escala run -e experiments/NAME.yaml    run it, and write results/NAME/index.html

Arguments after -- go to Snakemake as they are: escala run -- --keep-incomplete
docs/how-to/command.md describes every subcommand and its Snakemake call.

exit codes:
{chr(10).join(console.exit_code_lines())}
"""


def main() -> int:
    """Run the command with the arguments of this process; return its exit code."""
    return cli.main(_main)


def _main() -> int | None:
    # Other libraries are imported later, because PYTHONPATH may hold foreign modules.
    environment.drop_shadowing_paths(ROOT)
    if "_ARGCOMPLETE" in os.environ:
        # The mark "|" is at the cursor. So a subcommand that is still being typed, "ru|", is no
        # name, and no module is imported for it.
        line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
        parser, _ = _parsers(*(line + "|").split()[1:2])
        argcomplete.autocomplete(parser, always_complete_options=False)
    words = sys.argv[1:] or ["--help"]
    module, arguments = parse(words)
    # A shell that starts may call `completion` in any folder.
    if getattr(arguments, "in_call", False):
        # A job of Snakemake inherits the prepared environment: its ranks find the code of its
        # project.
        environment.prepend("PYTHONPATH", ROOT)
    elif words[0] != "completion":
        os.environ.pop(environment.SESSION_VARIABLE, None)
        folder = Path.cwd()
        root = folder if is_project(folder) else ROOT
        environment.prepare(root)
        environment.require_work_folder(folder)
        from escala.runtime import allocation

        allocation.bind_to_job()
        # The code of a clone must run in the clone. `python -O` removes docstrings; `-i` never
        # ends.
        is_other = not (root / "escala").samefile(ROOT / "escala")
        if sys.flags.optimize or sys.flags.inspect or is_other:
            os.execv(sys.executable, [sys.executable, "-m", "escala.command", *sys.argv[1:]])
    # A list is a call of Snakemake; a number is an exit code.
    result = module.run(arguments)
    return make(result, arguments) if isinstance(result, list) else result


def parse(words: list[str]) -> tuple[ModuleType, argparse.Namespace]:
    """Return the module of a subcommand, and its arguments.

    If the subcommand has an argument `extra`, that argument gets the words after `--`.

    Raises
    ------
    SystemExit : the arguments are wrong, or ask for help.
    """
    name, *words = words
    root_parser, subparsers = _parsers(name)
    if name not in COMMANDS:
        root_parser.parse_args([name, *words])  # This prints help or the error, and exits.
    parser, extra = subparsers[name], {}
    if parser.get_default("extra") is not None and "--" in words:
        # The words are divided here, because argparse reads options after `--` as plain words.
        place = words.index("--")
        words, extra = words[:place], {"extra": words[place + 1 :]}
    return _load(name), argparse.Namespace(**vars(parser.parse_args(words)) | extra)


def parsers() -> Mapping[str, Parser]:
    """Return the parser of each subcommand."""
    return _parsers(*COMMANDS)[1]


def _parsers(*names: str) -> tuple[Parser, Mapping[str, Parser]]:
    """Return the parser of the command, and the parser of each subcommand.

    Only the parsers of `names` have their options.
    """
    parser = Parser(
        description="Does training a model in parallel pay on my machines, by how much, and why?",
        prog="escala",
        epilog=TEACHING,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        added = commands.add_parser(name, help=text)
        if name in names:
            module = _load(name)
            added.description, added.epilog = module.__doc__, module.EXAMPLES
            module.add(added)
    return parser, commands.choices


def _load(name: str) -> ModuleType:
    return importlib.import_module(f"escala.commands.{name}")


if __name__ == "__main__":
    raise SystemExit(main())
