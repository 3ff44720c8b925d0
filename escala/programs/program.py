"""A user's own program as a workload: its declaration and its command."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from escala.core.errors import InputError
from escala.core.variables import CALLERS_PATH
from escala.data.paths import expand_path

#: The folder of the module that programs may import.
HOOK = Path(__file__).resolve().parents[1] / "hook"
#: The placeholders of commands, each with a description.
PLACEHOLDERS = {
    "rows": "rows of a step, over all ranks",
    "rows_of_rank": "rows of a step of this rank",
    "epochs": "epochs to train",
    "seed": "seed of the repeat",
    "ranks": "ranks in all",
    "rank": "number of this rank, from 0",
    "local_rank": "number of this rank on its node, from 0",
    "ranks_of_node": "ranks of one node",
    "nodes": "nodes",
    "node": "number of this node, from 0",
    "cores": "cores of this process",
    "address": "address of the first node",
    "port": "a free port there",
    "output": "a folder of the run",
}
#: The prefix of a placeholder for a path of the dataset.
DATA = "data."
_PLACEHOLDER = re.compile(r"\{(\{)?([a-z][a-z_]*(?:\.[A-Za-z0-9_-]+)?)\}(?(1)\})")
#: Words in a command that are replaced by the interpreter of the program.
PYTHON = re.compile(r"python[0-9.]*")
#: Code of the shell, after which a line can activate an environment of conda.
_CONDA = 'command -v conda > /dev/null && eval "$(conda shell.bash hook)"'
#: Signs that let a shell do more than divide a text into words.
_OF_SHELL = re.compile(
    r"&&|\|\||\d?>>?|[;&|<`$()*?]|\n(?=.*\S)|(?<!\S)[~#]|(?<!\S)!(?!\S)|\{[^{}\s]*(,|\.\.)[^{}\s]*\}"
)
#: Text that a shell takes literally: after a backslash, or in quotes.
_QUOTED = r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\""
#: The options of programs that bind another program to cores. `numactl` may bind only its memory.
_BINDERS = {
    "taskset": re.compile(r"\S+(?: -\S+)* [^-\s]\S* "),
    "numactl": re.compile(
        r"\S+(?: (?:-[al]|--(?:all|balancing|localalloc)|--?\w+=\S+|-\w[\d+!]\S*|--?\w+ \S+))+ "
    ),
}
_TO_CORES = re.compile(r"taskset| -[CN]| --(?:physcpu|cpunode)bind")
#: Words before the started program: names of wrapper programs, their options, and assignments.
_WRAPPER_WORDS = re.compile(
    r"(?:.*/)?(?:env|nice|nohup|time|timeout|stdbuf|unbuffer|setsid|ionice|chrt|prlimit|numactl"
    r"|taskset)|-.*|0x[\da-f]+|[\d.,:-]+[smhd]?|\w+=.*",
    re.DOTALL,
)
#: A number of epochs among the words of a command.
_EPOCHS = re.compile(
    r"(?:^|\s)(?:--?|[\w.]*\.)?(?:(?:num|n|max|nb|total|train|num_train)[-_])?epochs?"
    r"[= ](\d+)(?=\s|$)"
)
#: The exit code if one of `Program.lines` fails.
LINE_FAILED = 96


@dataclass(frozen=True)
class Program:
    """The declaration of a program (`schemas/declarations/program.schema.yaml`).

    Attributes
    ----------
    command : the words of the command, with placeholders.
    directory : the absolute path of the folder in which it is started.
    files : patterns of the files that determine its result; None: all files that git tracks, or all
        files.
    python : the absolute path of its interpreter; None: the interpreter on the PATH.
    lines : lines that bash reads before the command.
    variables : names of variables that it gets in addition to the variables of every rank.
    epoch_ends, step_ends : patterns of its output.
    window : seconds of steady steps after which a run ends; 0: none.
    terminal : whether it needs a pseudo-terminal.
    in_place : whether it is started in its own folder, and not in a copy (`escala.programs.copy`).
    gradient_bytes : the bytes of all gradients; None if unknown.
    where : the name of the declaration, for messages.
    """

    command: tuple[str, ...]
    directory: Path
    files: tuple[str, ...] | None
    python: str | None
    lines: tuple[str, ...]
    variables: tuple[str, ...]
    epoch_ends: str | None
    step_ends: str | None
    window: float
    terminal: bool
    in_place: bool
    gradient_bytes: int | None
    where: str

    @classmethod
    def of(cls, declared: Mapping[str, Any], base: Path, where: str) -> Program:
        """Return the program of a declaration that is valid by its schema.

        Parameters
        ----------
        base : the folder where a relative `directory` starts.
        where : the name of the declaration, for messages.

        Raises
        ------
        InputError : the directory or the interpreter does not exist, a placeholder is unknown, a
            pattern is no regular expression, or the command binds itself to cores.
        """
        environment = declared.get("environment", {})
        directory = Path(expand_path(declared.get("directory", "."), f"{where}.directory"))
        python, command = environment.get("python"), declared["command"]
        program = cls(
            tuple(words(command, f"{where}.command")),
            (base / directory).resolve(),
            tuple(declared["files"]) if "files" in declared else None,
            _interpreter(python, base, f"{where}.environment.python") if python else None,
            tuple(environment.get("lines", ())),
            tuple(environment.get("variables", ())),
            declared.get("epoch_ends"),
            declared.get("step_ends"),
            declared.get("window", 0),
            declared.get("terminal", False),
            declared.get("in_place", False),
            declared.get("gradient_bytes"),
            where,
        )
        program._check()
        return program

    def _check(self) -> None:
        if place := find_binding(self.command):
            where, bound = f"{self.where}.command", " ".join(self.command[place])
            reason = "binds every configuration to the same cores"
            raise InputError(where, bound, reason, "leave it out: each has cores of its own")
        if not self.directory.is_dir():
            where, reason = f"{self.where}.directory", "there is no such folder"
            raise InputError(where, str(self.directory), reason, "make it")
        for key in ("epoch_ends", "step_ends"):
            pattern = getattr(self, key)
            try:
                re.compile(pattern or "")
            except re.error as error:
                reason = f"is not a regular expression: {error}"
                raise InputError(f"{self.where}.{key}", pattern, reason, "correct it") from None
        for name in self.placeholders:
            if name not in PLACEHOLDERS and not name.startswith(DATA):
                reason, known = "there is no such placeholder", ", ".join(PLACEHOLDERS)
                remedy = (
                    f"use one of {known}, data.NAME, or write {{{{{name}}}}} for the text itself"
                )
                raise InputError(f"{self.where}.command", f"{{{name}}}", reason, remedy)

    @property
    def has_patterns(self) -> bool:
        """Whether its steps or epochs are known by lines of its output."""
        return bool(self.epoch_ends or self.step_ends)

    @property
    def placeholders(self) -> frozenset[str]:
        """The placeholders that the command names."""
        matches = (match for word in self.command for match in _PLACEHOLDER.finditer(word))
        return frozenset(match[2] for match in matches if not match[1])

    @property
    def epochs(self) -> int | None:
        """The number of epochs that its command names without a placeholder."""
        match = _EPOCHS.search(" ".join(self.command))
        return int(match[1]) if match else None

    @property
    def interpreter(self) -> str | None:
        """Its interpreter, or the word of the command that is one; None of another program."""
        first, *others = self.command
        starts = first if PYTHON.fullmatch(Path(first).name) else None
        return self.python or starts or next(filter(PYTHON.fullmatch, others), None)

    @property
    def data(self) -> list[str]:
        """The names of the paths that the command takes from its dataset."""
        return sorted(n.removeprefix(DATA) for n in self.placeholders if n.startswith(DATA))

    def arguments(self, values: Mapping[str, Any]) -> list[str]:
        """Return the words to start: the command with values in the place of its placeholders.

        If the command starts `python`, perhaps by `env` or `nice`, this word becomes the
        interpreter of the program. If there are `lines`, bash reads them first, and stops if a line
        fails.
        """

        def fill(match: re.Match) -> str:
            return match[0][1:-1] if match[1] else str(values[match[2]])

        words = [_PLACEHOLDER.sub(fill, word) for word in self.command]
        place = count_wrappers(words)
        started = Path(words[place]).name if place < len(words) else ""
        if self.python and PYTHON.fullmatch(started):
            words[place] = self.python
        # A command or a line may set where Python finds modules: the hook stays among them.
        assigned = "PYTHONPATH="
        words[:place] = [
            word.replace(assigned, f"{assigned}{HOOK}{os.pathsep}", 1)
            if word.startswith(assigned)
            else word
            for word in words[:place]
        ]
        if not self.lines:
            return words
        # A line must not see the words of the command as its own arguments.
        script = ['command=("$@"); set --']
        if any(line.lstrip().startswith("conda ") for line in self.lines):
            script.append(_CONDA)
        for line in map(shlex.quote, self.lines):
            telling = f"printf 'this line before the command failed: %s\\n' {line} >&2"
            script.append(f"eval {line} || {{ {telling}; exit {LINE_FAILED}; }}")
        script.append(f"export PYTHONPATH={shlex.quote(str(HOOK))}${{PYTHONPATH:+:$PYTHONPATH}}")
        return ["bash", "-c", "\n".join([*script, 'exec "${command[@]}"']), "bash", *words]

    def as_plan(self) -> dict[str, Any]:
        """Return all values that a rank needs to start the program, as JSON for `from_plan`."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in (vars(self) | {"directory": str(self.directory)}).items()
        }

    @classmethod
    def from_plan(cls, plan: Mapping[str, Any]) -> Program:
        """Return the program from a result of `as_plan`."""
        lists = {n: tuple(v) if isinstance(v, list) else v for n, v in plan.items()}
        return cls(**lists | {"directory": Path(plan["directory"])})


def words(command: str | Sequence[str], where: str) -> list[str]:
    """Return the words of a command. A single text is divided as a shell divides it.

    Raises
    ------
    InputError : the text has quotes that do not end, or signs that let a shell do more.
    """
    if not isinstance(command, str):
        return list(command)
    command = re.sub(r"""('[^']*'|"(?:\\.|[^"\\])*")|\\\r?\n""", r"\1", command)

    def read(match: re.Match) -> str:
        return re.sub(r"\\.|[^$`]", "", match[0]) if match[0].startswith('"') else "_"

    # A shell interprets all signs outside of quotes, and `$` and backticks in double quotes.
    unquoted = re.sub(_QUOTED, read, command.strip(), flags=re.DOTALL)
    if sign := _OF_SHELL.search(unquoted):
        reason = f"holds {sign[0]!r}, which a shell reads and Escala does not"
        remedy = (
            "put it into single quotes if it belongs to an argument, or let a shell run all: "
            f"sh -c {shlex.quote(command)}"
        )
        raise InputError(where, command, reason, remedy)
    try:
        return shlex.split(command)
    except ValueError as error:
        reason = f"cannot be divided into words: {error}"
        raise InputError(where, command, reason, "correct its quotes") from None


def find_binding(words: Sequence[str]) -> slice | None:
    """Return where words before an interpreter bind what follows to cores, None if none do."""
    for start, word in enumerate(words[: count_wrappers(words)]):
        name = Path(word).name
        bound = name in _BINDERS and _BINDERS[name].match(" ".join(words[start:]))
        if bound and _TO_CORES.search(bound[0]):
            end = start + bound[0].count(" ")
            return slice(start, end + (words[end : end + 1] == ["--"]))
    return None


def count_wrappers(words: Sequence[str]) -> int:
    """Return how many words stand before the program that others, such as `nice`, start."""
    before = ""
    for place, word in enumerate(words):
        is_value = before.startswith("-") and not PYTHON.fullmatch(Path(word).name)
        if not is_value and not _WRAPPER_WORDS.fullmatch(word):
            return place
        before = word
    return len(words)


def _interpreter(python: str, base: Path, where: str) -> str:
    """Return the absolute path of an interpreter. A link stays, because it decides the packages."""
    path = Path(expand_path(python, where))
    if path.name == str(path):
        program = shutil.which(path, path=os.environ.get(CALLERS_PATH))
    else:
        program = str((base / path).absolute())
    if program is None or not os.access(program, os.X_OK) or Path(program).is_dir():
        inside = (base / path / name for name in ("bin/python", "python"))
        there = next((file for file in inside if file.is_file()), "DIR/bin/python")
        raise InputError(where, python, "is not a program", f"name an interpreter: {there}")
    return program
