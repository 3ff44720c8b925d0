"""The kind `files`: a user's files and folders, which a program reads without a copy."""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from escala.core.console import progress
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data.paths import expand_path
from escala.data.settings import Settings

#: The state of each path when it was described, alongside `dataset.json`: [path, state] by name.
STATES = "states.json"


def check(settings: Settings) -> None:
    """Refuse a path that cannot be read, or is neither a file nor a folder with files.

    The check of a folder ends at its first file.
    """
    for key, path in paths(settings).items():
        if next(_walk(path, f"paths.{key}"), None) is None:
            reason = f"the folder {path} holds no files"
            remedy = "name the folder of your data, or mount its disk"
            raise InputError(f"paths.{key}", settings["paths"][key], reason, remedy)


def paths(settings: Settings) -> dict[str, Path]:
    """Return the absolute path of each file or folder by name."""
    return {
        name: Path(expand_path(text, f"paths.{name}")).absolute()
        for name, text in settings["paths"].items()
    }


def preparation(settings: Settings) -> dict:
    """Return what the description depends on, apart from the content of the files.

    Snakemake looks only at the time of the folder itself. The state of all files is a parameter of
    the rule, so Snakemake notices a changed file inside a folder.
    """
    digest = state(paths(settings), "paths")
    return {"rows": settings.get("rows"), "identify": settings["identify"], "state": digest}


def preparation_inputs(settings: Settings, folder: Path) -> dict[str, Path]:
    """Return the user's files and folders."""
    return paths(settings)


def find_changes(split: Path) -> list[str]:
    """Return the placeholders, such as `{data.train}`, of paths that changed since the split."""
    changed = []
    for key, (path, described) in read_json(split / STATES).items():
        try:
            now = state({key: Path(path)}, "paths")
        except InputError:
            now = None
        if now != described:
            changed.append(f"{{data.{key}}}")
    return changed


class File(NamedTuple):
    """A file: its name relative to the user's path, its path, and its result of `stat`.

    The name is empty if the user's path is this file.
    """

    name: str
    path: str
    status: os.stat_result


def files(path: Path, where: str) -> list[File]:
    """Return all files of a folder and of the folders in it, by name; for a file, only this file.

    Links are followed, but a link to a folder that contains the link is refused. Sockets, pipes,
    devices and broken links are passed over.
    """
    say = progress(f"escala: {where}: %d files found so far")
    listed = []
    for file in _walk(path, where):
        listed.append(file)
        say(len(listed))
    return sorted(listed)


def state(named: Mapping[str, Path], where: str) -> str:
    """Return a digest of names, sizes and times of all files of several paths, in hexadecimal.

    Changed content changes the state. Equal content may also change the state, such as after a
    copy.
    """
    digest = hashlib.sha256()
    for key, path in sorted(named.items()):
        for file in files(path, f"{where}.{key}"):
            status = file.status
            times = status.st_mtime_ns, status.st_ctime_ns
            digest.update(repr((key, file.name, status.st_size, *times)).encode())
    return digest.hexdigest()


def unreadable(where: str, path: object, error: OSError) -> InputError:
    """Return the error about a path that cannot be read."""
    if isinstance(error, FileNotFoundError):
        remedy = "correct the path, and let nothing remove files while Escala runs"
        return InputError(where, str(path), "there is no such file or folder", remedy)
    reason = f"cannot be read: {error.strerror}"
    return InputError(where, str(path), reason, "get the right to read it, or name another path")


def _walk(path: Path, where: str) -> Iterator[File]:
    """Yield the files that `files` lists, in the order of the file system."""
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            open(path, "rb").close()
            yield File("", str(path), status)
            return
        if not stat.S_ISDIR(status.st_mode):
            reason = "is a pipe, a socket or a device, and not a file or a folder"
            raise InputError(where, str(path), reason, "name a file or a folder")
        for folder, _, names in os.walk(path, onerror=_raise, followlinks=True):
            inside = Path(folder).relative_to(path)
            for outer in Path(folder).parents[: len(inside.parts)]:
                if outer.samefile(folder):
                    reason = f"is a link to {outer}, and this folder holds the link"
                    raise InputError(where, folder, reason, "remove the link")
            prefix = f"{inside}/" if inside.parts else ""
            for name in names:
                file = f"{folder}/{name}"
                try:
                    file_status = Path(file).stat()
                except FileNotFoundError:  # A broken link, or a file that was just removed.
                    continue
                if stat.S_ISREG(file_status.st_mode):
                    yield File(prefix + name, file, file_status)
    except OSError as error:
        raise unreadable(where, error.filename or path, error) from error


def _raise(error: OSError) -> None:
    raise error
