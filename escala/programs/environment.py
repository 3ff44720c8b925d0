"""The environment of a program: its variables, versions and files, which determine its results."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from escala.core import packages, variables
from escala.core.children import capture
from escala.core.errors import InputError
from escala.core.files import is_file, sha256_file
from escala.programs.program import LINE_FAILED, PYTHON, Program

_SECONDS = 60


def identity(program: Program) -> dict[str, Any]:
    """Return the values that determine the results of a program, besides its data and the machine.

    Raises
    ------
    InputError : `versions` or `digests` raises it.
    """
    # Of a secret, only whether the variable is set is recorded. Of other variables, a digest is
    # recorded, because a name may not show that its value is a secret. None stands for a declared
    # variable that is not set.
    values = variables.decisive_for_programs()
    values |= {name: os.environ.get(name) for name in program.variables}
    variable_digests: dict[str, str | None] = {}
    for name, value in values.items():
        if value is None:
            variable_digests[name] = None
        elif variables.is_secret(name):
            variable_digests[name] = "set"
        else:
            content = value.encode(errors="surrogateescape")
            variable_digests[name] = hashlib.sha256(content).hexdigest()[:16]
    return {
        "command": list(program.command),
        "files": _digests_at_start(program),
        "lines": list(program.lines),
        "variables": variable_digests,
        "patterns": [program.epoch_ends, program.step_ends],
        "terminal": program.terminal,
        "in_place": program.in_place,
        "versions": versions(program),
    }


@cache
def versions(program: Program) -> dict[str, Any]:
    """Return the versions of the interpreter of a program, `python`, and of its `packages`.

    A program that is no Python has none.

    Raises
    ------
    InputError : the program is not found, or a line before its command fails.
    """
    interpreter, first = program.interpreter, program.command[0]
    lookup = ["bash", "-c", 'command -v -- "$1"', "bash", first]
    done = run_in_environment(program, [interpreter, "-c", packages.ASK] if interpreter else lookup)
    if interpreter and (answer := packages.read(done.stdout)):
        return answer
    if not interpreter and done.returncode == 0:
        return {}
    last_lines = " | ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
    key, value = "command", interpreter or first
    reason = f"cannot be started{last_lines and f': {last_lines}'}"
    remedy = "name a program on the PATH, or an interpreter: environment: {python: DIR/bin/python}"
    if done.returncode == LINE_FAILED:
        key, value, reason = "environment.lines", None, last_lines
        remedy = "correct it, or write `|| true` after it if it may fail"
    elif (program.directory / first).is_file() and not interpreter:
        reason = "may not be executed"
        remedy = f"write its interpreter before it, or chmod +x {program.directory / first}"
    raise InputError(f"{program.where}.{key}", value, reason, remedy)


def run_in_environment(program: Program, command: list[str]) -> subprocess.CompletedProcess:
    """Run a command in a program's folder and environment; exit code 127 if it cannot start."""
    try:
        return capture(
            replace(program, command=tuple(command)).arguments({}),
            cwd=program.directory,
            env=environment(program, variables.for_ranks() | extra_variables(program)),
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess([], 127, "", str(error))


@cache
def which(program: Program, name: str) -> str | None:
    """Return the path of another program that `program` finds in its environment or by PATH."""
    if program.python and PYTHON.fullmatch(name):
        return program.python
    if not program.lines:
        surroundings = environment(program, variables.for_ranks() | extra_variables(program))
        path = shutil.which(name, path=surroundings.get("PATH"))
        return path and str((program.directory / path).absolute())
    done = run_in_environment(program, ["bash", "-c", f"echo; command -v {shlex.quote(name)}"])
    last = done.stdout.splitlines()[-1:]
    return last[0] if last and done.returncode == 0 and Path(last[0]).is_absolute() else None


def extra_variables(program: Program) -> dict[str, str]:
    """Return the variables that a program gets in addition to the variables of every rank."""
    declared = {name: os.environ[name] for name in program.variables if name in os.environ}
    return variables.for_programs() | declared


def environment(program: Program, of_ranks: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a program: the variables of ranks, and others for its interpreter.

    PWD is the folder in which the program is started. PATH is the PATH of the user's shell, without
    the programs of this project. The folder of the interpreter comes first in PATH only if PATH
    would find another Python, because the other programs in that folder would hide programs of the
    user.
    """
    result = variables.restore_shell(of_ranks) | {"PWD": str(program.directory)}
    if not program.python:
        return result
    folder, path = Path(program.python).parent, result.get("PATH", "")
    first = os.pathsep.join(filter(None, [str(folder), path]))
    names = {"python", "python3", Path(program.python).name}
    if any(shutil.which(name, path=first) != shutil.which(name, path=path) for name in names):
        result["PATH"] = first
    result.pop("PYTHONHOME", None)
    if (folder.parent / "pyvenv.cfg").is_file():
        result["VIRTUAL_ENV"] = str(folder.parent)
    return result


#: Folders of files that determine no result, unless a pattern names them.
_PASSED_OVER = {
    *("__pycache__", "node_modules", "results", "wandb", "mlruns", "lightning_logs"),
    *(".escala", ".snakemake"),
}
#: The most files, and the most bytes, of a program. Anything larger is data.
MOST_BYTES, MOST_FILES = 2**28, 20_000
#: The most files with a digest each. More files share one digest, to keep the text of a request
#: short.
_MOST_LISTED = 200


def files(program: Program) -> set[Path]:
    """Return the files that determine the results of a program. Too many files are refused."""
    paths = set()
    for path in _find_files(program):
        paths.add(path)
        if len(paths) > MOST_FILES:
            reason = f"holds more than {MOST_FILES} files to digest"
            raise _refusal(program, program.directory, reason)
    return paths


def digests(program: Program) -> dict[str, str]:
    """Return the SHA-256 of each file that determines the results, by its path in the directory.

    Many files share one digest, except files that the command names. If the program declares no
    patterns, its files are those that git tracks or would track, or else all files.

    Raises
    ------
    InputError : a pattern matches no file, a file cannot be read, or the files are too many or too
        large.
    """
    by_name, bytes_left, directory = {}, MOST_BYTES, program.directory
    for path in sorted(files(program)):
        try:
            bytes_left -= path.stat().st_size
            if bytes_left < 0:
                raise _refusal(
                    program, directory, f"holds more than {MOST_BYTES >> 20} MiB of files to digest"
                )
            inside = path.is_relative_to(directory)
            name = path.relative_to(directory).as_posix() if inside else path.name
            # Two files outside of the directory may have equal names.
            by_name[name if name not in by_name else str(path)] = sha256_file(path)
        except OSError as error:
            raise _refusal(program, path, f"cannot be read: {error.strerror}") from None
    if len(by_name) <= _MOST_LISTED:
        return by_name
    named = {name: digest for name, digest in by_name.items() if name in program.command}
    others = sorted((name, digest) for name, digest in by_name.items() if name not in named)
    whole = hashlib.sha256(repr(others).encode(errors="surrogateescape"))
    return named | {f"{len(others)} other files": whole.hexdigest()}


#: The digests are computed once in a call, because many runs of a program have the same files.
_digests_at_start = cache(digests)


def _refusal(program: Program, path: Path, reason: str) -> InputError:
    remedy = (
        "name the files of the program: files: ['*.py']; large files belong to a dataset of the "
        "kind files"
    )
    return InputError(f"{program.where}.files", str(path), reason, remedy)


def _find_files(program: Program) -> Iterator[Path]:
    folder = program.directory
    # The command may name a script elsewhere.
    for word in filter(None, program.command[1:]):
        if is_file(path := (folder / word).absolute()):
            yield path
    for pattern in program.files or ():
        matched = [Path(pattern)] if Path(pattern).is_absolute() else folder.glob(pattern)
        matched = [path for path in matched if path.is_file()]
        if not matched:
            reason, remedy = "matches no file", f"name files in {folder}"
            raise InputError(f"{program.where}.files", pattern, reason, remedy)
        yield from matched
    if program.files is None:
        for path in _git_files(folder) or _walk(folder):
            if path.is_file() and not _is_experiment(path):
                yield path


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [n for n in folders if not (n.startswith(".") or n in _PASSED_OVER)]
        yield from (Path(place, name) for name in names if not name.startswith("."))


def _git_files(folder: Path) -> list[Path]:
    """Return the files of a folder that git tracks or would track; none outside of git."""
    call = ["git", "-C", str(folder), "ls-files", "-z", "-t", "--cached", "--others"]
    call += ["--exclude-standard"]
    try:
        done = subprocess.run(call, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [os.fsdecode(line).partition(" ") for line in done.stdout.split(b"\0") if line]
    return [
        folder / name
        for tag, _, name in (lines if done.returncode == 0 else ())
        if tag != "?" or not _PASSED_OVER.intersection(Path(name).parts)
    ]


def _is_experiment(path: Path) -> bool:
    """Return whether a file is an experiment of Escala. It may stand beside a program."""
    with suppress(OSError):
        is_yaml = path.suffix in (".yaml", ".yml")
        return is_yaml and bool(re.search(rb"^experiment:", path.read_bytes(), re.MULTILINE))
    return False
