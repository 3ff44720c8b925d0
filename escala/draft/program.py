"""Draft an experiment on a user's own program: do more processes, or more threads, pay for it?"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

from escala.core import variables
from escala.core.arguments import above_zero, whole_number
from escala.core.children import capture
from escala.core.errors import InputError
from escala.core.files import is_file, read_yaml
from escala.core.hardware import available_cores, available_gpus, cpu_quota, hardware_threads
from escala.core.readable import name_first, with_noun
from escala.draft import command as draft_command
from escala.draft.command import EXAMPLE, LAUNCHER
from escala.draft.divide import describe as describe_division
from escala.draft.file import PROCESSES, THREADS, Draft, compare_settings
from escala.programs.program import PYTHON, Program, count_wrappers, find_binding
from escala.programs.program import words as words_of
from escala.runtime import slurm
from escala.runtime.layout import Layout
from escala.strategies import OPTIONS, STRATEGIES
from escala.workloads import WORKLOADS

#: Defaults of the options.
EPOCHS, ROWS, MINUTES = 3, 64, 3
#: The strategy of one process.
ONE = "single"
#: Seconds of steady steps that each run times.
WINDOW_SECONDS = 2
#: An interpreter that takes more seconds to print its path is not used.
_SECONDS = 20
#: Placeholders by which a program trains equal rows with any number of ranks.
_BATCH = {"rows", "rows_of_rank"}
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_PLAIN_WORD = re.compile(r"(?:[\w@%+=:,./-]|\{\w+(?:\.\w+)?\})+", re.ASCII)
#: A load of others below this one is the noise of a machine.
_BUSY = 0.5
#: A larger file is data. So are more files of one folder than this, unless they are code.
_LARGE_BYTES, _MANY, _CODE = 2**24, 20, {".py", ".so"}


def add_options(parser: argparse.ArgumentParser, sizes: bool = True) -> None:
    """Add the options on a program that `draft` takes.

    Parameters
    ----------
    sizes : whether the options also name the sizes that are compared, and how long.
    """
    how = parser.add_argument_group(
        "how the program's processes find each other"
    ).add_mutually_exclusive_group()
    for strategy, option in OPTIONS.items():
        how.add_argument(
            option.name, dest="strategy", action="store_const", const=strategy, help=option.help
        )
    usable = [name for name, strategy_class in STRATEGIES.items() if strategy_class.programs]
    how.add_argument(
        "--strategy", choices=usable, metavar="NAME", help=f"one of {', '.join(usable)}"
    )
    size = parser.add_argument_group("what is compared")
    text = "most processes of a node, and threads of one; default: its GPUs, or its cores"
    numbers = [
        ("--processes", None, text),
        ("--epochs", None, f"number of epochs, for {{epochs}}; default: {EPOCHS}"),
        ("--rows", None, f"rows of all ranks in a step, for {{rows}}; default: {ROWS}"),
    ]
    if sizes:
        text = "processes to compare with, if the program needs several; default: 1"
        numbers.append(("--baseline", 1, text))
        numbers.append(("--nodes", 1, "also compare so many nodes of a cluster"))
    for option, default, text in numbers:
        size.add_argument(option, type=whole_number, default=default, metavar="N", help=text)
    if sizes:
        until = size.add_mutually_exclusive_group()
        text = "begin no further repeat after so many minutes of runs, or half as many more to a "
        text += "first verdict"
        until.add_argument(
            "--minutes", type=above_zero, default=MINUTES, metavar="N",
            help=f"{text}; default: {MINUTES}. It stops before, if the answer is decided",
        )  # fmt: skip
        text = "repeats of each configuration, whatever the answer; default: until it is decided"
        until.add_argument("--repeats", type=whole_number, metavar="N", help=text)
    about = parser.add_argument_group("the program")
    example = "'epoch \\d+ loss (?P<loss>\\S+)'"
    about.add_argument(
        "--epoch-ends", "--regex", metavar="REGEX",
        help=f"finds the line that ends an epoch, such as {example}",
    )  # fmt: skip
    about.add_argument("--step-ends", metavar="REGEX", help="finds the line that ends a step")
    about.add_argument(
        "--why", action="store_true",
        help="also trace some steps of PyTorch, in three more runs of each configuration, to tell "
        "where the time of a step goes",
    )  # fmt: skip
    about.add_argument(
        "--whole", action="store_true",
        help="let each run go on to its end; default: end it after some seconds of steps that are "
        "seen, or that its lines tell of, which are guessed",
    )  # fmt: skip
    about.add_argument(
        "--python", metavar="PATH", help="its interpreter; default: python of this shell"
    )
    about.add_argument(
        "--terminal", action="store_true", help="run it on a terminal, so that it prints at once"
    )
    about.add_argument(
        "--in-place", action="store_true",
        help="run it in this folder itself; default: each run works in a copy of the folder",
    )  # fmt: skip
    about.add_argument("--name", help="name of the experiment; default: that of the script")
    for option, metavar, text in (
        ("--variable", "NAME", "a secret of this shell that the program needs"),
        ("--data", "NAME=PATH", "a file or folder of data, for {data.NAME}"),
    ):
        text += "; may be given several times"
        about.add_argument(option, action="append", default=[], metavar=metavar, help=text)


def file_of(name: str) -> Path:
    """Return the file for a program's draft in the working directory."""
    return Path(f"escala-{name}.yaml")


def draft(command: Sequence[str], options: argparse.Namespace, sizes: bool = True) -> Draft:
    """Draft the smallest experiment on a program that is started in the working directory.

    It compares one process on one core with one process on all cores, and with a process on each
    core, if it is known how processes find each other. With GPUs, there is a process for each GPU,
    and the processes share the cores.

    Parameters
    ----------
    command : the words of the command, or one text. Programs are looked up on the PATH of the user.
    options : the options of `add_options`.
    sizes : whether the draft compares numbers of processes and threads. False for one side of
        `escala.draft.pair`, which compares two commands.

    Raises
    ------
    InputError : there is no command, a path has no name, the command cannot be given the number of
        its ranks, or this machine has one core only.
    """
    folder, words = Path.cwd(), _words(command)
    reading = draft_command.read(words, options.strategy, folder)
    strategy, sentences = reading.strategy or ONE, list(reading.sentences)
    command = _without_threads(reading.command, sentences)
    if place := find_binding(command):
        bound = " ".join(command[place])
        sentences.append(f"{bound} is left out: each configuration has cores of its own.")
        del command[place]
    words, python = _interpreter(command, options.python)
    started = python or draft_command.find_program("python")
    if started and not options.python:
        if Path(started).parent == Path(sys.executable).parent:
            sentences.append(f"python is Escala's own here, {started}; --python names another.")
        elif python:
            sentences.append(f"Its interpreter is {python}; --python names another.")
    secrets = {name for name in os.environ if variables.is_secret(name)}
    if secrets := sorted(secrets - set(variables.for_ranks()) - set(options.variable)):
        sentences.append(
            f"{', '.join(secrets)}: not passed on, as secrets are not; --variable NAME does."
        )
    data = {}
    for text in options.data:
        name, _, path = text.partition("=")
        if not (name and path):
            raise InputError("--data", text, "names no path", "write it as NAME=PATH")
        data[name] = path
    program = _program(words, folder, data, options.python)
    if strategy == LAUNCHER and not set(draft_command.NUMBERS) & program.placeholders:
        if options.strategy:
            reason = "always starts the same number of ranks"
            remedy = f"put {{ranks_of_node}} in the place of the number, as in {EXAMPLE}"
            raise InputError("--launcher", shlex.join(words), reason, remedy)
        sentences.append("To vary the number of its ranks, name {ranks_of_node} in the command.")
        strategy = ONE
    base = options.baseline
    if strategy == ONE and base > 1:
        reason = "needs to know how the processes of the command find each other"
        raise InputError("--baseline", base, reason, f"add one of {name_ways()}")
    processes, threads, cores = _numbers(
        options, reading.processes, draft_command.may_use_gpus(words, folder), sentences, sizes
    )
    if sizes and options.nodes == 1 and threads == 1:
        available = len(available_cores())
        reason = f"one process on one core can be compared with nothing ({available} available)"
        remedy = "give at least 2, or --nodes 2 on a cluster"
        raise InputError("--processes", options.processes, reason, remedy)
    sentences += _limits(program, strategy, options, sizes)
    title = _title(words, folder)
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(title).stem).strip("-_")
    name = options.name or stem[:50] or "program"
    datasets = {"files": {"kind": "files", "paths": data}} if data else {"none": {"kind": "files"}}
    layouts = [Layout(1, base)]
    if not STRATEGIES[strategy].layouts.one_rank:
        layouts += [Layout(1, processes)] if processes > base else []
        layouts += [Layout(options.nodes, processes)] if options.nodes > 1 else []
    configurations = [{"layouts": list(map(str, layouts)), "variants": [PROCESSES]}]
    threads //= base
    if threads > 1:
        configurations.append({"layouts": [str(layouts[0])], "variants": [THREADS]})
    elif sizes and len(layouts) == 1:
        reason = "leaves nothing to compare with: each process has one core of this machine"
        raise InputError("--baseline", base, reason, "take a machine with more cores")
    what = "processes" if len(layouts) > 1 else "threads"
    settings = compare_settings(
        name,
        f"Do more {what} pay for {title}?",
        options.repeats or {"decide": True, "minutes": options.minutes},
        [strategy],
        threads=threads,
        cores=cores,
        base=base,
        datasets=datasets,
        workloads={
            name if name not in WORKLOADS else f"{name}-program": {
                "command": " ".join(
                    word if _PLAIN_WORD.fullmatch(word) else shlex.quote(word) for word in words
                ),
                "directory": ".",
                # An earlier trial may have seen further files.
                "files": sorted(
                    {*draft_command.list_files(words, folder), *list_earlier_files(file_of(name))}
                ),
                **_workload(program, python, options),
            }
        },
        configurations=[{"strategy": strategy} | entry for entry in configurations],
    )
    if options.why:
        settings["torch-trace"] = {"enabled": True}
    notes = {"files": "Add what else it reads and you may change, such as settings."}
    as_typed = None
    # If the guess from the script is wrong, the command still runs as one process.
    if reading.guessed and strategy != ONE and base == 1:
        as_typed = draft(command, argparse.Namespace(**vars(options) | {"strategy": ONE}), sizes)
    return Draft(settings, notes, sentences, as_typed)


def list_earlier_files(file: Path) -> list[str]:
    """Return the existing files that an earlier draft of a program names."""
    try:
        workload, *_ = read_yaml(file)["workloads"].values()
        return [*filter(glob, workload["files"])]
    except Exception:  # The file is missing, or no draft; `Draft.content` refuses it then.
        return []


def add_files(draft: Draft, read: Sequence[str]) -> Iterator[str]:
    """Add files that a program has read to the files of its draft; yield sentences on them.

    Large files, and many files of one folder that are no code, are data. They are only mentioned.

    Parameters
    ----------
    read : the paths of the files (`escala.programs.processes.list_unlisted`).
    """
    first, *_ = workloads = draft.settings["workloads"].values()
    if "files" not in first:  # It has all that git tracks.
        return
    folders = Counter(Path(name).parent for name in read if Path(name).suffix not in _CODE)
    data = {folder for folder, number in folders.items() if number > _MANY}
    large = {Path(name) for name in read if Path(name).stat().st_size > _LARGE_BYTES}
    data |= {path for path in large if path.parent not in data}
    added = [name for name in read if data.isdisjoint((Path(name), Path(name).parent))]
    if added:
        files = sorted({*first["files"], *map(draft_command.pattern_of, added)})
        for workload in workloads:
            workload["files"] = files
        names = name_first(added)
        yield f"It reads {names}, which belong to its files: a change is measured again."
    if paths := sorted(map(str, data)):
        yield (
            f"It reads {name_first(paths)}, of which a change is not noticed. Name them: --data "
            f"NAME={shlex.quote(paths[0])}"
        )


def _workload(program: Program, python: str | None, options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the workload of a program, by the options."""
    settings: dict[str, Any] = {}
    environment = {"python": python} if python else {}
    environment |= {"variables": options.variable} if options.variable else {}
    if environment:
        settings["environment"] = environment
    if "epochs" in program.placeholders:
        settings["epochs"] = options.epochs or EPOCHS
    if _BATCH & program.placeholders:
        settings["batch"] = {"rows": options.rows or ROWS, "per": "global"}
    for key in ("epoch_ends", "step_ends", "terminal", "in_place"):
        if value := getattr(options, key):
            settings[key] = value
    if not options.whole and (options.step_ends or not options.epoch_ends):
        settings["window"] = WINDOW_SECONDS
    return settings


def _program(words: list[str], folder: Path, data: dict[str, str], python: str | None) -> Program:
    """Return the program of a command that names known placeholders and data.

    Parameters
    ----------
    python : the interpreter that an option names.
    """
    environment = {"environment": {"python": python}} if python else {}
    try:
        program = Program.of({"command": words} | environment, folder, "")
    except InputError as error:
        where = "--python" if error.where.endswith(".python") else "command"
        raise InputError(where, error.value, error.reason, error.remedy) from None
    for name in program.data:
        if name not in data:
            reason = "no --data gives its path"
            raise InputError("command", f"{{data.{name}}}", reason, f"add --data {name}=PATH")
    return program


def _words(command: Sequence[str]) -> list[str]:
    """Return the words of a command, which may be one text, or begin with variables."""
    words = list(command)
    if len(words) == 1 and re.search(r"\s", words[0]) and not is_file(words[0]):
        words = words_of(words[0], "command")
    elif {"&&", "||"} & set(words):
        words_of(" ".join(words), "command")
    if not words or not words[0]:
        remedy = "write it after --, as in: -- python train.py --batch {rows}"
        raise InputError("command", None, "is missing", remedy)
    if words[0].endswith(".py") and is_file(words[0]) and not os.access(words[0], os.X_OK):
        reason, remedy = "is a script, and not a program", f"write: python {shlex.quote(words[0])}"
        raise InputError("command", words[0], reason, remedy)
    return ["env", *words] if _ASSIGNED.fullmatch(words[0]) else words


def _interpreter(words: Sequence[str], named: str | None) -> tuple[list[str], str | None]:
    """Return the command and its interpreter of Python; None without an interpreter.

    An interpreter that the command names by its path becomes `python` in the command.

    Parameters
    ----------
    named : the interpreter that an option names.

    Raises
    ------
    InputError : there is no such interpreter.
    """
    words, first = list(words), words[0]
    if PYTHON.fullmatch(Path(first).name) and Path(first).name != first:
        named, words[0] = named or str(Path(first).absolute()), "python"
    if named:
        # A folder is an environment, in which the interpreter is looked for.
        if not (Path(named).expanduser().is_dir() or draft_command.find_program(named)):
            remedy = "name the Python that you start the script with"
            raise InputError("the interpreter", named, "is not a program", remedy)
        return words, named
    program = draft_command.find_program(first)
    # A path may be an argument of another program.
    wraps = draft_command.WRAPPERS.fullmatch(Path(first).name)
    names = [Path(word).name if wraps else word for word in words]
    place = next((n for n, name in enumerate(names) if PYTHON.fullmatch(name)), None)
    if place is not None:
        # A program of the user may do anything.
        started = min(count_wrappers(words), place)
        environment = draft_command.ENVIRONMENTS.fullmatch(Path(words[started]).name)
        if started < place and not environment:
            return words, None
        # The interpreter itself prints its path. A word before it, such as `uv run`, or a wrapper
        # on the PATH may choose another interpreter.
        call = [*words[: place + 1], "-c", "import sys; print(sys.executable)"]
        with suppress(OSError, subprocess.TimeoutExpired):
            shell = variables.restore_shell()
            done = capture([program, *call[1:]], timeout=_SECONDS, env=shell) if program else None
            lines = done.stdout.splitlines() if done else []
            if lines and os.access(lines[-1], os.X_OK):
                return words, lines[-1]
        return words, (program if place == 0 else None)
    # Programs of an environment, such as accelerate, name its interpreter.
    started = words[min(count_wrappers(words), len(words) - 1)]
    program = draft_command.find_program(started)
    return words, draft_command.interpreter_of(Path(program)) if program else None


def _without_threads(words: Sequence[str], sentences: list[str]) -> list[str]:
    """Return a command without assignments of numbers of threads: configurations set them."""
    if Path(words[0]).name != "env":
        return list(words)
    place = next(n for n, word in enumerate([*words[1:], ""], 1) if not _ASSIGNED.fullmatch(word))
    kept, threads = [], []
    for word in words[1:place]:
        is_threads = variables.THREADS.fullmatch(word.partition("=")[0])
        (threads if is_threads else kept).append(word)
    if threads:
        sentences.append(f"{' '.join(threads)} is left out: each configuration sets its threads.")
    return [words[0], *kept, *words[place:]] if kept or not threads else list(words[place:])


def _numbers(
    options: argparse.Namespace,
    launched: int | None,
    uses_gpus: bool,
    sentences: list[str],
    sizes: bool,
) -> tuple[int, int, int]:
    """Return the processes of a node, the threads of one process, and `cores_per_process`.

    The cores are for configurations with several processes.

    With GPUs, there is a process for each GPU, and the processes share the cores. Else there is one
    for each physical core: two hardware threads of one core share its units. Of a cluster, the
    smallest node counts; without an answer of SLURM, this machine does.

    Parameters
    ----------
    launched : the processes that the launcher of the command names. With `sizes`, they are the most
        that are compared, unless there is one.
    uses_gpus : whether the program may use GPUs.
    sizes : as in `draft`. If it is false, processes on several nodes share all cores of a node.
    """
    if options.nodes > 1 and (node := slurm.smallest_node()):
        place, load, quota = "A node of the cluster", 0.0, None
        physical, cores, gpus = node
    else:
        place, load, quota = "This machine", os.getloadavg()[0], cpu_quota()
        available, gpus = available_cores(), len(available_gpus())
        cores, physical = len(available), len({tuple(hardware_threads(core)) for core in available})
    parts = [with_noun(physical, "core")]
    parts += [with_noun(cores, "hardware thread")] if cores > physical else []
    parts += [f"a quota of {quota:.3g} cores"] if quota else []
    parts += (
        [with_noun(gpus, "GPU") + ("" if uses_gpus else " that no script names")] if gpus else []
    )
    busy = f"; others make a load of {load:.1f}" if load > _BUSY else ""
    sentences.append(f"{place} has {', '.join(parts)}{busy}.")
    gpus = gpus if uses_gpus else 0
    processes = options.processes or gpus or (physical if physical > 1 else cores)
    named = None if options.processes else launched
    as_typed = ""
    if named and (not sizes or 1 < named < processes):
        processes, as_typed = named, ", as in the command"
    wanted = processes
    if options.nodes == 1:
        processes = min(processes, cores)
    several = with_noun(processes, "process", "processes")
    if processes < wanted:
        there = f"this machine has {with_noun(cores, 'core')}"
        sentences.append(f"{several}, and not {wanted}{as_typed}: {there}.")
    elif as_typed:
        sentences.append(f"{several}{as_typed}; --processes N sets another number.")
    threads = cores if gpus or (processes == 1 and options.nodes > 1) else processes
    if gpus and processes > 1:
        return processes, threads, max(1, cores // processes)
    return processes, threads, 1 if sizes or options.nodes == 1 else max(1, physical // processes)


def _limits(
    program: Program, strategy: str, options: argparse.Namespace, sizes: bool
) -> Iterator[str]:
    """Yield sentences on numbers that the command cannot vary, and on the consequences."""
    if strategy == ONE and sizes:
        script = draft_command.find_script(program.command, program.directory)
        if lines := script and describe_division(script):
            yield lines
        yield (
            "Escala compares one process on one core with one process on several cores. To compare "
            f"several processes, say how they find each other: {name_ways()}, or {{rank}} and "
            "{ranks} in the command."
        )
        if options.nodes > 1:
            yield "--nodes has no effect: one process has one node."
    if options.epochs and "epochs" not in program.placeholders:
        yield "--epochs has no effect: the command does not name {epochs}."
    if options.rows and not _BATCH & program.placeholders:
        yield "--rows has no effect: the command names neither {rows} nor {rows_of_rank}."
    elif strategy != ONE and sizes and not _BATCH & program.placeholders:
        yield (
            "The command names neither {rows} nor {rows_of_rank}: each process takes the batch "
            "that the program chooses, so more processes may make other updates."
        )


def name_ways() -> str:
    return ", ".join(option.name for option in OPTIONS.values())


def _title(words: Sequence[str], folder: Path) -> str:
    """Return the name of the script, or of the module or program."""
    if file := draft_command.find_script(words, folder):
        return file.name
    if module := draft_command.find_module(words):
        return module.removesuffix(".__main__").rpartition(".")[2]
    first = (word for word in words if word != "env" and not _ASSIGNED.fullmatch(word))
    return Path(next(first, words[0])).name
