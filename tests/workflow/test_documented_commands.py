"""Every command of the documentation is checked here, run by a named test, or marked with a reason.

A call of Snakemake, or one that `escala run` makes, reads its arguments and its experiment. A
script reads its arguments, and RUN_BY names the test that runs it. The command `escala` and the
call that it makes read their arguments, and so does a benchmark. Any other command needs a comment
above its block: `<!-- run by: FILE::TEST -->` or `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from dataclasses import replace

import pytest
from snakemake.cli import get_argument_parser

from escala import command as console
from escala.experiment import read
from tests.conftest import ROOT
from tests.documented import PAGES, Command, commands

#: Runs all that a clean checkout must pass.
CI = ".ci/run"
#: Programs and scripts, and what runs each of them.
RUN_BY = {
    "escala": "tests/unit/test_command.py::test_the_printed_call_is_made_in_place_of_the_command",
    "lint-imports": CI,
    "pytest": CI,
    "scripts.docs_reference": CI,
}
#: What stands in for a file of the reader's own.
STAND_IN = "experiments/virus/ladder.yaml"

pytestmark = pytest.mark.sweep

ALL = [command for page in PAGES for command in commands(page)]
CHECKED = [command for command in ALL if not (command.run_by or command.not_run)]
CALLS = [command for command in CHECKED if command.words[0] == "snakemake"]


def _module(command: Command) -> tuple[str, tuple[str, ...]]:
    """Return the module that a command runs, or its program, and the arguments."""
    program, *rest = command.words
    if program != "python":
        return program, tuple(rest)
    if rest[0] == "-m":
        return rest[1], tuple(rest[2:])
    return rest[0].removesuffix(".py").replace("/", "."), tuple(rest[1:])


SCRIPTS = [each for each in CHECKED if each.words[0] == "python"]
CONSOLE = [each for each in CHECKED if each.words[0] == "escala"]


def _exists(test: str) -> bool:
    """Tell whether a named test exists."""
    file, _, name = test.partition("::")
    if not (ROOT / file).is_file() or not name:
        return test == CI
    tree = ast.parse((ROOT / file).read_text())
    return name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def _is_benchmark(module: str) -> bool:
    """Tell whether a module is a benchmark that exists."""
    folder, _, name = module.partition(".")
    return folder == "benchmarks" and (ROOT / folder / f"{name}.py").is_file()


def unchecked(command: Command) -> str | None:
    """Return what a command lacks to be checked; None of one that is."""
    module, _ = _module(command)
    if command.not_run or module == "snakemake" or _is_benchmark(module):
        return None
    test = command.run_by or RUN_BY.get(module)
    if test is None:
        return "is neither checked nor run by a test, and no comment above it gives a reason"
    return None if _exists(test) else f"there is no test {test}"


def test_every_command_is_checked_or_run_by_a_test_or_has_a_reason():
    lacking = {str(each): reason for each in ALL if (reason := unchecked(each))}
    assert lacking == {}


class _ReadError(Exception):
    """The arguments were read, and nothing else is to be done."""


def _reads(module: str, arguments: tuple[str, ...], monkeypatch) -> None:
    """Let a script read its arguments, and do nothing else."""
    read = argparse.ArgumentParser.parse_args

    def only_read(self, args=None, namespace=None):
        read(self, args, namespace)
        raise _ReadError

    main = importlib.import_module(module).main
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only_read)
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    with pytest.raises(_ReadError):
        main()


def test_scripts_and_calls_of_snakemake_read_their_arguments(monkeypatch):
    for command in (*SCRIPTS, *CALLS):
        with monkeypatch.context() as patch:
            _call_reads(command, patch)


def _made_by_escala(command: Command) -> Command | None:
    """Let `escala` read its words; return the call of Snakemake that it makes of them, if any."""
    module, arguments = console.parse([_existing(word) for word in command.words[1:]])
    is_call = command.words[1] in ("run", "report", "predict", "study")
    return replace(command, words=tuple(module.run(arguments))) if is_call else None


def _existing(word: str) -> str:
    """Return a word, or a stand-in of an experiment that the reader writes."""
    named = word.startswith("experiments/") and word.endswith(".yaml")
    return STAND_IN if named and not (ROOT / word).exists() else word


def _call_reads(call: Command, monkeypatch) -> None:
    """Let the program of a call read its arguments, and do nothing else."""
    module, arguments = _module(call)
    if module == "snakemake":
        options = get_argument_parser().parse_args([_existing(word) for word in arguments])
        for file in options.configfile or ["config.yaml"]:
            read(ROOT / file)
    else:
        _reads(module, arguments, monkeypatch)


def test_the_command_escala_and_its_calls_read_their_arguments(monkeypatch):
    monkeypatch.chdir(ROOT)
    for command in CONSOLE:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", [*command.words])
            if call := _made_by_escala(command):
                _call_reads(call, patch)
