"""The files that determine the results of a program, by their digests."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from escala.core.errors import InputError
from escala.core.files import sha256_file

#: Folders of files that no run depends on, if nobody names them.
_PASSED_OVER = {
    *("__pycache__", "node_modules", "results", "wandb", "mlruns", "lightning_logs"),
    *(".escala", ".snakemake"),
}
#: More of them are data, and not the files of a program.
MOST_BYTES, MOST_FILES = 2**28, 20_000
#: More of them share one digest: a request is passed on as text.
_MOST_LISTED = 200
_SECONDS = 60
_REMEDY = (
    "name the files of the program: files: ['*.py']; large files belong to a dataset of the kind "
    "files"
)


def files(
    directory: Path, command: tuple[str, ...], patterns: tuple[str, ...] | None, where: str
) -> set[Path]:
    """Return the files that determine the results of a program, as `digests` does their digests."""
    return _limited(_files(directory, command, patterns, where), directory, where)


def digests(
    directory: Path, command: tuple[str, ...], patterns: tuple[str, ...] | None, where: str
) -> dict[str, str]:
    """Return the SHA-256 of each file that determines the results, by its path in the directory.

    Many files, but for those that the command names, share one. `patterns` are of the files; None
    takes those that git tracks or would track, or all. `where` names the declaration, for messages.
    A pattern without a file, a file that cannot be read, and too many or too large files, are
    refused.
    """
    found, bytes_left = {}, MOST_BYTES
    for path in sorted(files(directory, command, patterns, where)):
        try:
            bytes_left -= path.stat().st_size
            if bytes_left < 0:
                reason = f"holds more than {MOST_BYTES >> 20} MiB of files to digest"
                raise InputError(f"{where}.files", str(directory), reason, _REMEDY)
            inside = path.is_relative_to(directory)
            name = path.relative_to(directory).as_posix() if inside else path.name
            # Files outside of the directory may have the name of another.
            found[name if name not in found else str(path)] = sha256_file(path)
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
            raise InputError(f"{where}.files", str(path), reason, _REMEDY) from None
    if len(found) <= _MOST_LISTED:
        return found
    named = {name: digest for name, digest in found.items() if name in command}
    others = sorted((name, digest) for name, digest in found.items() if name not in named)
    whole = hashlib.sha256(repr(others).encode(errors="surrogateescape"))
    return named | {f"{len(others)} other files": whole.hexdigest()}


def _limited(files: Iterator[Path], directory: Path, where: str) -> set[Path]:
    found = set()
    for path in files:
        found.add(path)
        if len(found) > MOST_FILES:
            reason = f"holds more than {MOST_FILES} files to digest"
            raise InputError(f"{where}.files", str(directory), reason, _REMEDY)
    return found


def _files(
    folder: Path, command: Sequence[str], patterns: Sequence[str] | None, where: str
) -> Iterator[Path]:
    # The script that a command names, which may be elsewhere. Other words may be too long.
    for word in filter(None, command[1:]):
        with suppress(OSError):
            if (path := (folder / word).absolute()).is_file():
                yield path
    if patterns is not None:
        for pattern in patterns:
            matched = [path for path in _matched(folder, pattern) if path.is_file()]
            if not matched:
                reason, remedy = "matches no file", f"name files in {folder}"
                raise InputError(f"{where}.files", pattern, reason, remedy)
            yield from matched
        return
    tracked = _tracked(folder)
    for path in _walked(folder) if tracked is None else tracked:
        if path.is_file() and not _is_experiment(path):
            yield path


def _matched(folder: Path, pattern: str) -> list[Path]:
    return [Path(pattern)] if Path(pattern).is_absolute() else list(folder.glob(pattern))


def _walked(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [n for n in folders if not (n.startswith(".") or n in _PASSED_OVER)]
        yield from (Path(place, name) for name in names if not name.startswith("."))


def _tracked(folder: Path) -> list[Path] | None:
    """Return the files of a folder that git tracks or would track, None if it tracks none there."""
    call = ["git", "-C", str(folder), "ls-files", "-z", "-t", "--cached", "--others"]
    call += ["--exclude-standard"]
    try:
        done = subprocess.run(call, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [os.fsdecode(line).partition(" ") for line in done.stdout.split(b"\0") if line]
    found = [
        folder / name
        for tag, _, name in lines
        if tag != "?" or not _PASSED_OVER.intersection(Path(name).parts)
    ]
    return found if done.returncode == 0 and found else None


def _is_experiment(path: Path) -> bool:
    """Return whether a file is an experiment of this project, which may stand next to a program."""
    if path.suffix not in (".yaml", ".yml"):
        return False
    with suppress(OSError):
        return bool(re.search(rb"^experiment:", path.read_bytes(), re.MULTILINE))
    return False
