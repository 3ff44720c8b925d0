"""Every command of the documentation is checked here, run by a named test, or marked with a reason.

A call of Snakemake, or one that `escala run` makes, reads its arguments and its experiment; dry
runs of some of them plan all that they ask for, such as kinds of targets. A script reads its
arguments, and RUN_BY names the test that runs it. The command `escala` and the call that it makes
read their arguments. A benchmark only reads its arguments, because it takes minutes of an idle
machine. Any other command needs a comment above its block: `<!-- run by: FILE::TEST -->` or
`<!-- not run: REASON -->`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from snakemake.cli import get_argument_parser

from escala import command as console
from escala.experiment import read
from tests.conftest import CLASSES, ROOT
from tests.documented import PAGES, Command, commands, files
from tests.workflow.conftest import dry_run_in

#: Runs all that a clean checkout must pass.
CI = ".ci/run"
#: Programs and scripts, and what runs each of them.
RUN_BY = {
    "escala": "tests/unit/test_command.py::test_the_printed_call_is_made_in_place_of_the_command",
    "lint-imports": CI,
    "pytest": CI,
    "scripts.docs_reference": CI,
}
#: What stands in for a path or a name that is the reader's own.
STAND_INS = {
    "experiments/NAME.yaml": "experiments/virus/ladder.yaml",
    # `escala new` writes it in the command before.
    "experiments/flowers.yaml": "experiments/virus/ladder.yaml",
    "experiments/samples.yaml": "experiments/virus/ladder.yaml",
    # The tutorial has it.
    "experiments/my-genomes.yaml": "experiments/virus/ladder.yaml",
}
STAND_INS |= {
    f"{path.parent.relative_to(ROOT)}/{path.stem}-torch.yaml": str(path.relative_to(ROOT))
    for path in (ROOT / "experiments/course").glob("*.yaml")
}

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


def _data(folder: Path) -> dict[str, str]:
    """Make what stands in for a user's data, and return the variables that name it.

    A dry run needs files that exist, and does not read them.
    """
    genomes = [f"genomes/{name}.fasta" for name in CLASSES]
    own = [f"escala/my-genomes/{name}.fasta" for name in CLASSES]
    lists = [f"flickr8k/Flickr_8k.{side}Images.txt" for side in ("train", "dev", "test")]
    others = ["reads.fasta", "vgg16.h5", "flowers.csv", "new.csv", "flickr8k/Flickr8k.token.txt"]
    for name in [*genomes, *own, *lists, *others]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    for name in ("mnist", "cifar", "fish", "flickr8k/Flicker8k_Dataset"):
        (folder / name).mkdir()
    return {
        "ESCALA_GENOMES": str(folder / "genomes"),
        "ESCALA_QUERY": str(folder / "reads.fasta"),
        "ESCALA_MNIST": str(folder / "mnist"),
        "ESCALA_CIFAR": str(folder / "cifar"),
        "ESCALA_FISH": str(folder / "fish"),
        "ESCALA_FLICKR8K": str(folder / "flickr8k"),
        "ESCALA_VGG16": str(folder / "vgg16.h5"),
        "FLOWERS": str(folder / "flowers.csv"),
        "NEW_FLOWERS": str(folder / "new.csv"),
    }


@dataclass(frozen=True)
class Call:
    """The arguments of a call of Snakemake and its environment, with a user's paths replaced."""

    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, command: Command, data: dict[str, str]) -> Call:
        environment = {
            name: data[name] if value.startswith("/path") else value
            for name, value in command.environment
            if name != "PATH"
        }
        words = (STAND_INS.get(word, word) for word in command.words[1:] if word != "--dry-run")
        return cls(tuple(words), tuple(environment.items()))

    def asks_for(self, project: Path) -> set[object]:
        """Return options, profiles, kinds of data and of targets, after reading the arguments."""
        options = get_argument_parser().parse_args(self.arguments)
        [file] = options.configfile or [Path("config.yaml")]
        experiment = read(project / file)
        sources = (
            (each.get("kind"), each.get("source", {}).get("type"))
            for each in experiment["datasets"].values()
        )
        # Of a run, its probe; of another file, its folder.
        targets = (
            target.split("/")[-2] if "/runs/" in target else target.split("/")[2:-1] or target
            for target in options.targets
        )
        named = (word for word in self.arguments if word.startswith(("--", "profiles/")))
        return {*named, *sources, *map(str, targets)}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """Return a folder like that of the project, with the files of the documentation."""
    folder = tmp_path_factory.mktemp("documented") / "escala"
    (folder / "experiments").mkdir(parents=True)
    for path in (*ROOT.iterdir(), *(ROOT / "experiments").iterdir()):
        if path.name not in ("results", "experiments") and path.name[0] != ".":
            (folder / path.relative_to(ROOT)).symlink_to(path)
    for page in PAGES:
        for name, text in files(page).items():
            path = folder / name
            # Modules of the project are not added to it.
            if not path.exists() and path.resolve().is_relative_to(folder.resolve()):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    return folder


def test_calls_of_snakemake_have_a_graph_of_jobs(project, monkeypatch):
    data, failed = _data(project.parent), {}
    found = [*CALLS, *_calls_of_escala(monkeypatch)]
    # Experiments of the course in PyTorch are made by the reader; a report needs results.
    apart = re.compile(r"-torch/runs|--report")
    calls = {str(each): Call.of(each, data) for each in found if not apart.search(str(each))}
    # That which asks for most of what no call has asked for yet.
    left = {name: call.asks_for(project) for name, call in calls.items()}
    while any(left.values()):
        name = max(left, key=lambda each: len(left[each]))
        there = ("--snakefile", ROOT / "Snakefile", *calls[name].arguments)
        code, said = dry_run_in(project, *there, **dict(calls[name].environment))
        if code:
            failed[name] = said
        left = {each: asked - left[name] for each, asked in left.items()}
    assert failed == {}


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


def test_scripts_read_their_arguments(monkeypatch):
    for command in SCRIPTS:
        with monkeypatch.context() as patch:
            _reads(*_module(command), patch)


def _made_by_escala(command: Command) -> tuple[str, ...] | None:
    """Let `escala` read its words; return the call of Snakemake that it makes of them, if any."""
    module, arguments = console.parse([STAND_INS.get(word, word) for word in command.words[1:]])
    is_call = command.words[1] in ("run", "report", "predict", "study")
    return tuple(module.run(arguments)) if is_call and "--doublings" not in command.words else None


def _calls_of_escala(monkeypatch) -> Iterator[Command]:
    """Yield the calls of Snakemake that `escala run` makes, with their variables."""
    for command in CONSOLE:
        if command.words[1] == "run":
            with monkeypatch.context() as patch:
                patch.chdir(ROOT)
                yield replace(command, words=_made_by_escala(command))


def test_the_command_escala_and_its_calls_read_their_arguments(monkeypatch):
    monkeypatch.chdir(ROOT)
    for command in CONSOLE:
        monkeypatch.setattr(sys, "argv", [*command.words])
        if call := _made_by_escala(command):
            get_argument_parser().parse_args(call[1:])
