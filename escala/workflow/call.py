"""The calls of Snakemake that subcommands of `escala` stand for.

Results are written in the working directory. If this folder is no project folder, the workflow of
the installation is used.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from escala.core import console
from escala.core.arguments import Parser
from escala.core.console import say
from escala.core.errors import InputError
from escala.core.variables import PROFILE

#: Files and folders by which a project folder is recognised. No other folder has all of them.
PROJECT = ("Snakefile", "config.yaml", "escala", "scripts")
#: The project folder of this module: a clone, or the folder of the installation.
ROOT = Path(__file__).resolve().parents[2]


def add_options(parser: Parser) -> None:
    """Add the options of a call that makes results."""
    text = "cores to use; default: all, or those of the profile"
    parser.add_argument("-c", "--cores", metavar="N", type=_cores, help=text)
    text = "Snakemake's profile, such as profiles/slurm"
    parser.add_argument("--profile", metavar="FOLDER", help=text)
    text = "show what would run, and run nothing"
    parser.add_argument("-n", "--dry-run", action="store_true", help=text)
    text = "measure also what an earlier call has measured"
    parser.add_argument("--again", action="store_true", help=text)
    add_verbose(parser)
    add_experiment(parser)


def add_verbose(parser: Parser) -> None:
    """Add the option for the lines of Snakemake and of all jobs."""
    text = "print all lines of Snakemake and of its jobs, and not only the progress and the answer"
    parser.add_argument("-v", "--verbose", action="store_true", help=text)


def _cores(text: str) -> str:
    """Check a number of cores, or `all`."""
    if text != "all" and not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError("is neither a number from 1 on nor all")
    return text


def add_experiment(parser: Parser) -> None:
    """Add the option of the experiment. `extra` of the arguments gets the words after `--`."""
    text = "file of the experiment; default: config.yaml"
    option = parser.add_argument("-e", "--experiment", metavar="FILE", help=text)
    option.completer = lambda **_: experiments()
    parser.set_defaults(extra=[])
    parser.hint = f"those of Snakemake stand after --: {parser.prog} -- --OPTION"


def call_of(arguments: argparse.Namespace, words: Sequence[str]) -> list[str]:
    """Return the words of a call of Snakemake.

    Parameters
    ----------
    arguments : the arguments of `add_options` or `add_experiment`, with words for Snakemake as
        `extra`.
    words : the targets, or other words that come first.

    Raises
    ------
    InputError : no experiment is named and the working directory has no default experiment; or the
        file of the experiment is missing or no YAML.
    """
    call = ["snakemake"]
    if not is_project(Path.cwd()):  # Snakemake would take both from the working directory first.
        call += ["--snakefile", str(ROOT / "Snakefile")]
        if Path("profiles", "default").exists():
            call += ["--workflow-profile", str(ROOT / "profiles" / "default")]
    call += words
    if "cores" in arguments:
        cores = arguments.cores or (None if arguments.profile else "all")
        call += ["--cores", cores] if cores else []
        call += ["--profile", find_file(arguments.profile)] if arguments.profile else []
        call += ["--dry-run"] if arguments.dry_run else []
        call += ["--forcerun", "measure"] if arguments.again else []
    call += arguments.extra
    file = file_of(arguments)
    # `--configfile` comes last, because it takes every word after it.
    return [*call, "--configfile", file] if arguments.experiment else call


def make(call: list[str], arguments: argparse.Namespace) -> NoReturn:
    """Replace this process by a call of Snakemake.

    The call and Snakemake's lines are printed if they are asked for, or options of Snakemake.
    """
    if arguments.verbose or arguments.extra:
        os.environ.pop(console.BRIEF, None)
        # The line goes to stderr, because stdout belongs to the call.
        print(f"$ {shlex.join(call)}", file=sys.stderr, flush=True)
    else:
        os.environ[console.BRIEF] = console.NOWHERE
    profile = os.environ.pop(PROFILE, None)
    if profile and not any(word.split("=")[0] == "--profile" for word in call):
        say(
            f"{PROFILE}: {profile} is not read, as it decides how other work runs. "
            f"To use it here: --profile {shlex.quote(profile)}"
        )
    # `called` runs Snakemake, and prints one message for each error.
    os.execv(sys.executable, [sys.executable, "-m", "escala.workflow.called", *call[1:]])


def find_file(path: str) -> str:
    """Return the path of a file: here, or in the project folder if the file is not here."""
    return str(ROOT / path) if not Path(path).exists() and (ROOT / path).exists() else path


def is_project(folder: Path) -> bool:
    return all((folder / name).exists() for name in PROJECT)


def experiments() -> list[str]:
    """Return the files of the experiments in the working directory."""
    from escala.experiment import is_experiment

    files = [*Path().glob("*.yaml"), *Path("experiments").rglob("*.yaml")]
    return sorted(map(str, filter(is_experiment, files)))


def file_of(arguments: argparse.Namespace) -> str:
    """Return the file of the experiment that arguments name, or of the default experiment.

    Raises
    ------
    InputError : see `call_of`.
    """
    if arguments.experiment is None:
        # Only a project folder has a default experiment.
        folder = Path.cwd()
        project = next((parent for parent in (folder, *folder.parents) if is_project(parent)), None)
        if project == folder:
            return "config.yaml"
        remedy = "measure a script: escala try -- python train.py; or write a file: escala new"
        if here := experiments():
            remedy = f"name a file: --experiment {shlex.quote(here[0])}"
        if project:
            remedy = f"for the default one: cd {shlex.quote(os.path.relpath(project))}; or {remedy}"
        reason = "no experiment is named, and only the folder of the project has a default one"
        raise InputError("working directory", str(folder), reason, remedy)
    file = find_file(arguments.experiment)
    if not Path(file).is_file():
        import difflib

        known = experiments()
        near = difflib.get_close_matches(file, known, 1) or known[:1]
        remedy = f"name a file such as {near[0]}, or write one by `escala new`" if near else None
        remedy = remedy or "write one by `escala try` or `escala new`"
        raise InputError("--experiment", file, "no such file", remedy)
    from escala.core.yaml12 import read

    # Snakemake reads the file before the rules, and its message does not name the file.
    if not isinstance(read(file), dict):
        raise InputError(file, None, "has no keys", "write one by `escala try` or `escala new`")
    return file
