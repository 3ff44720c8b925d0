"""Draft an experiment on a user's own program: do more processes, or more threads, pay for it?"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.core.hardware import available_cores
from escala.experiment import launchers
from escala.experiment.draft import PROCESSES, THREADS
from escala.experiment.program_files import files_read
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.workloads import WORKLOADS
from escala.workloads.program import Program

#: What is compared, and for how long, unless the options tell otherwise.
EPOCHS, ROWS, REPEATS = 3, 64, 7
_SECONDS = 20
_EXECUTABLE = "import sys; print(sys.executable)"
#: Strategies by the options that name them.
STRATEGY_OPTIONS = {
    "--torch": ("torch-ddp", "PyTorch's DistributedDataParallel: RANK, WORLD_SIZE, MASTER_ADDR, …"),
    "--mpi": ("mpi", "processes of MPI, such as mpi4py"),
    "--horovod": ("horovod-mpi", "Horovod over MPI"),
    "--tf-config": ("tf-config", "TensorFlow's MultiWorkerMirroredStrategy: TF_CONFIG"),
    "--launcher": (
        "own-launcher",
        "the command starts its ranks itself (torchrun, accelerate launch, mp.spawn, …), with "
        "{ranks_of_node} or {ranks} for their number",
    ),
}
ONE, OWN = "single", "own-launcher"
#: Placeholders that let a program train the same rows with any number of ranks.
_BATCH = {"rows", "rows_of_rank"}
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_PLAIN_WORD = re.compile(r"[^\s'\"\\]+")


@dataclass(frozen=True)
class Draft:
    """An experiment on a program.

    Attributes
    ----------
    settings : of the experiment.
    notes : comments of its file by key, below those of the schema.
    said : sentences on what was taken for known, and on what the program cannot vary.
    """

    settings: dict[str, Any]
    notes: dict[str, str]
    said: list[str]

    @property
    def name(self) -> str:
        return self.settings["experiment"]

    @property
    def file(self) -> Path:
        """The file for it in the working directory."""
        return Path(f"escala-{self.name}.yaml")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options on a program that `draft` takes."""
    how = parser.add_argument_group(
        "how the program's processes find each other"
    ).add_mutually_exclusive_group()
    for option, (strategy, text) in STRATEGY_OPTIONS.items():
        how.add_argument(option, dest="strategy", action="store_const", const=strategy, help=text)
    usable = [name for name, each in STRATEGIES.items() if "command" in each.trains_by]
    how.add_argument(
        "--strategy", choices=usable, metavar="NAME", help=f"one of {', '.join(usable)}"
    )
    size = parser.add_argument_group("what is compared")
    size.add_argument(
        "--processes", type=_count, metavar="N", help="and threads; default: the cores there are"
    )
    size.add_argument(
        "--nodes", type=_count, default=1, metavar="N", help="of a cluster, besides one node"
    )
    size.add_argument("--epochs", type=_count, help=f"for {{epochs}}; default: {EPOCHS}")
    size.add_argument(
        "--rows", type=_count, help=f"of a step, over all ranks, for {{rows}}; default: {ROWS}"
    )
    size.add_argument("--repeats", type=_count, help=f"of each configuration; default: {REPEATS}")
    about = parser.add_argument_group("the program")
    about.add_argument(
        "--epoch-ends",
        "--regex",
        metavar="REGEX",
        help="finds the line that ends an epoch, such as 'epoch \\d+ loss (?P<loss>[0-9.]+)'",
    )
    about.add_argument("--step-ends", metavar="REGEX", help="the same for each step")
    about.add_argument(
        "--python", metavar="PATH", help="its interpreter; default: python of this shell"
    )
    about.add_argument(
        "--variable",
        action="append",
        default=[],
        metavar="NAME",
        help="of this shell, which the program needs; may be given several times",
    )
    about.add_argument(
        "--terminal", action="store_true", help="for a program that holds its output back otherwise"
    )
    about.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="a file or folder of data, for {data.NAME}; may be given several times",
    )
    about.add_argument("--name", help="of the experiment; default: that of the script")


def _count(text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def draft(command: Sequence[str], options: argparse.Namespace, path: str | None) -> Draft:
    """Return the smallest experiment on a program that is started in the working directory.

    It compares one process on one core with the same on as many cores as there are, and with as
    many processes, if it is known how these find each other.

    Parameters
    ----------
    command : its words, or one text.
    options : those of `add_options`.
    path : where the shell of the user looks for programs, as its PATH.

    Raises
    ------
    InputError : there is no command, a path has no name, the command cannot be given the number of
        its ranks, or this machine has one core only.
    """
    folder, words = Path.cwd(), _words(command)
    found = launchers.known(words, options.strategy, folder)
    words, python = _interpreter(found.command, options.python, path)
    strategy, said = found.strategy or ONE, list(found.said)
    if python and not options.python:
        said.append(f"Its interpreter is {python}; --python names another.")
    program = _program(words, folder, options)
    if strategy == OWN and not set(launchers.NUMBERS) & program.named:
        if options.strategy:
            raise InputError(
                "--launcher",
                shlex.join(words),
                "always starts the same number of ranks",
                "put {ranks_of_node} in the place of the number, as in torchrun "
                "--nproc-per-node {ranks_of_node} train.py",
            )
        said.append("To vary the number of its ranks, name {ranks_of_node} in the command.")
        strategy = ONE
    processes = _processes(options, said)
    said += _limits(program, strategy, options)
    name = options.name or _name(words, folder)
    workload = {"command": text_of(words), "directory": "."}
    workload |= {"files": files_read(words, folder)}
    environment = {"python": python} if python else {}
    environment |= {"variables": options.variable} if options.variable else {}
    workload |= {"environment": environment} if environment else {}
    workload |= {"epochs": options.epochs or EPOCHS} if "epochs" in program.named else {}
    if _BATCH & program.named:
        workload["batch"] = {"rows": options.rows or ROWS, "per": "global"}
    for key in ("epoch_ends", "step_ends"):
        if pattern := getattr(options, key):
            workload[key] = pattern
    workload |= {"terminal": True} if options.terminal else {}
    title, configurations = _compared(strategy, processes, options.nodes, _title(words, folder))
    data = dict(_path(each) for each in options.data)
    settings = {
        "experiment": name,
        "title": title,
        "repeats": options.repeats or REPEATS,
        "time_limit_minutes": 60,
        "datasets": {
            "files" if data else "none": {"kind": "files"} | ({"paths": data} if data else {})
        },
        "workloads": {name if name not in WORKLOADS else f"{name}-program": workload},
        "variants": {
            PROCESSES: {"cores_per_process": 1},
            **({THREADS: {"cores_per_process": processes}} if processes > 1 else {}),
        },
        "configurations": configurations,
        "references": [
            {"strategy": strategy, "layout": "1x1", "variant": variant}
            for variant in (PROCESSES, *((THREADS,) if processes > 1 else ()))
        ],
    }
    notes = {
        "repeats": "A 95 % interval of a ratio needs six pairs. With seven, one may fail.",
        "files": "Add what else it reads and you may change, such as settings.",
        "variants": f"`{THREADS}` is the alternative to more processes: one process with threads.",
    }
    return Draft(settings, notes, said)


def _program(words: list[str], folder: Path, options: argparse.Namespace) -> Program:
    """Return the program of a command that names known placeholders and the data of options."""
    try:
        program = Program.of({"command": words}, folder, "")
    except InputError as error:
        raise InputError("command", error.value, error.reason, error.remedy) from None
    given = dict(map(_path, options.data))
    for name in program.data:
        if name not in given:
            reason = "no --data gives its path"
            raise InputError("command", f"{{data.{name}}}", reason, f"add --data {name}=PATH")
    return program


def _words(command: Sequence[str]) -> list[str]:
    """Return the words of a command, which may be one text, or begin with variables."""
    words = list(command)
    if len(words) == 1 and re.search(r"\s", words[0]) and not Path(words[0]).is_file():
        try:
            words = shlex.split(words[0])
        except ValueError as error:
            reason = f"cannot be divided into words: {error}"
            raise InputError("command", words[0], reason, "mend its quotes") from None
    if not words or not words[0]:
        remedy = "write it after --, as in: escala try -- python train.py --batch {rows}"
        raise InputError("command", None, "is missing", remedy)
    if words[0].endswith(".py") and Path(words[0]).is_file() and not os.access(words[0], os.X_OK):
        reason, remedy = "is a script, and no program", f"write: python {words[0]}"
        raise InputError("command", words[0], reason, remedy)
    return ["env", *words] if _ASSIGNED.fullmatch(words[0]) else words


def _interpreter(
    words: Sequence[str], asked: str | None, path: str | None
) -> tuple[list[str], str | None]:
    """Return the command and its interpreter of Python, None if it needs none.

    A command that names an interpreter by its path names it as `python`.
    """
    words, first = list(words), words[0]
    if launchers.PYTHON.fullmatch(Path(first).name) and Path(first).name != first:
        asked, words[0] = asked or str(Path(first).absolute()), "python"
    if asked:
        return words, asked
    place = next((n for n, word in enumerate(words) if launchers.PYTHON.fullmatch(word)), None)
    if place is not None:
        # What stands before it, such as `uv run`, may choose another than the PATH does.
        found = shutil.which(words[0], path=path)
        return words, found and _itself([found, *words[1 : place + 1]])
    # Programs of an environment, such as accelerate, stand beside its interpreter.
    found = shutil.which(first, path=path)
    beside = Path(found).with_name("python") if found else None
    inside = beside is not None and (beside.parent.parent / "pyvenv.cfg").is_file()
    return words, str(beside) if inside and os.access(beside, os.X_OK) else None


def _itself(started: list[str]) -> str | None:
    """Return the path of an interpreter by its own word: PATH may hold a program that chooses.

    Parameters
    ----------
    started : the words that start it; a single one is its path.
    """
    call, otherwise = [*started, "-c", _EXECUTABLE], started[0] if len(started) == 1 else None
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return otherwise
    lines = done.stdout.splitlines()
    return lines[-1] if lines and os.access(lines[-1], os.X_OK) else otherwise


def _processes(options: argparse.Namespace, said: list[str]) -> int:
    """Return the processes of a node, which are also the threads of one process."""
    there = len(available_cores())
    if options.nodes > 1:
        return options.processes or there
    if options.processes and options.processes > there:
        said.append(f"--processes {options.processes}: {there} cores are there, so {there}.")
    processes = min(options.processes or there, there)
    if processes == 1:
        raise InputError(
            "--processes",
            options.processes,
            f"one process on one core has no alternative ({there} available)",
            "give at least 2, or --nodes 2 on a cluster",
        )
    return processes


def _limits(program: Program, strategy: str, options: argparse.Namespace) -> Iterator[str]:
    """Yield what the command cannot vary, and what that means."""
    if strategy == ONE:
        yield (
            "Compared are one core and several cores for one process. To compare processes, say "
            "how they find each other: --torch, --mpi, --horovod, --tf-config, --launcher, or "
            "{rank} and {ranks} in the command."
        )
    if options.epochs and "epochs" not in program.named:
        yield "--epochs has no effect: the command does not name {epochs}."
    if options.rows and not _BATCH & program.named:
        yield "--rows has no effect: the command names neither {rows} nor {rows_of_rank}."
    elif strategy != ONE and not _BATCH & program.named:
        yield (
            "The command names neither {rows} nor {rows_of_rank}: each process takes the batch "
            "that the program chooses, so more processes may make other updates."
        )


def _name(words: Sequence[str], folder: Path) -> str:
    """Return a name by the script, or by the module or program."""
    title = _title(words, folder)
    stem = title.removesuffix(Path(title).suffix)
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:50] or "program"


def _title(words: Sequence[str], folder: Path) -> str:
    if file := launchers.script(words, folder):
        return file.name
    if module := launchers.module(words):
        return module
    first = (word for word in words if word != "env" and not _ASSIGNED.fullmatch(word))
    return Path(next(first, words[0])).name


def _compared(
    strategy: str, processes: int, nodes: int, program: str
) -> tuple[str, list[dict[str, Any]]]:
    """Return a title, and the configurations."""
    layouts = [Layout(1, 1)]
    if not STRATEGIES[strategy].only_one_rank:
        layouts += [Layout(1, processes)] if processes > 1 else []
        layouts += [Layout(nodes, processes)] if nodes > 1 else []
    found = [{"strategy": strategy, "layouts": list(map(str, layouts)), "variants": [PROCESSES]}]
    if processes > 1:
        found.append({"strategy": strategy, "layouts": ["1x1"], "variants": [THREADS]})
    what = "processes" if len(layouts) > 1 else "threads"
    return f"Do more {what} pay for {program}?", found


def _path(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise InputError("--data", text, "names no path", "write it as NAME=PATH")
    return name, path


def text_of(words: Sequence[str]) -> str:
    """Return the words as text that `shlex.split` divides into the same."""
    return " ".join(word if _PLAIN_WORD.fullmatch(word) else shlex.quote(word) for word in words)
