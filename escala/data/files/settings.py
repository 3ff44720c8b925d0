"""The settings of a dataset of files, and the files at its paths, without their content."""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from escala.core.console import progress
from escala.core.errors import InputError
from escala.data.paths import expanded_path
from escala.data.settings import Settings

_SORTS = {
    stat.S_ISSOCK: "a socket",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


def check(settings: Settings) -> None:
    """Refuse a path that is no file and no folder with files, or that cannot be read."""
    for key, path in paths(settings).items():
        require_usable(path, f"paths.{key}", settings["paths"][key])


def paths(settings: Settings) -> dict[str, Path]:
    """Return the absolute path of each file or folder by name."""
    return {
        name: Path(expanded_path(text, f"paths.{name}")).absolute()
        for name, text in settings["paths"].items()
    }


def preparation(settings: Settings) -> dict:
    """Return what the description depends on besides the content of the files.

    Snakemake looks at a folder's own time only. With the state of all files among the parameters of
    the rule, it notices a file that was changed inside.
    """
    digest = state(paths(settings), "paths")
    return {"rows": settings.get("rows"), "identify": settings["identify"], "state": digest}


def prepared_from(settings: Settings, folder: Path) -> dict[str, Path]:
    """Return the user's files and folders."""
    return paths(settings)


class File(NamedTuple):
    """A file: its name below the user's path, where it is, and what `stat` tells of it.

    The name is empty for a path that is a file itself.
    """

    name: str
    path: str
    status: os.stat_result


def require_usable(path: Path, where: str, given: object) -> None:
    """Refuse a path that is neither a file nor a folder with files, or that cannot be read.

    Only the first file of a folder is looked for. `where` is the path's key in the experiment, and
    `given` the path as the user wrote it.
    """
    if next(_files(path, where), None) is None:
        reason = f"the folder {path} holds no files"
        raise InputError(where, given, reason, "name the folder of your data, or mount its disk")


def files(path: Path, where: str) -> list[File]:
    """Return all files of a folder and of its folders, or the one file, by name.

    Links are followed, but not to a folder that holds them. Sockets, pipes, devices and links to
    nothing are passed over.
    """
    say = progress(f"escala: {where}: %d files found so far")
    listed = []
    for file in _files(path, where):
        listed.append(file)
        say(len(listed))
    return sorted(listed)


def state(named: Mapping[str, Path], where: str) -> str:
    """Return a digest of names, sizes and times of all files of several paths, in hexadecimal.

    Another state need not mean another content; another content means another state.
    """
    told = hashlib.sha256()
    for key, path in sorted(named.items()):
        for file in files(path, f"{where}.{key}"):
            about = file.status
            times = about.st_mtime_ns, about.st_ctime_ns
            told.update(repr((key, file.name, about.st_size, *times)).encode())
    return told.hexdigest()


def unreadable(where: str, path: object, error: OSError) -> InputError:
    """Return the error about a path that cannot be read."""
    if isinstance(error, FileNotFoundError):
        remedy = "correct the path, and let nothing remove files while Escala runs"
        return InputError(where, str(path), "there is no such file or folder", remedy)
    reason = f"cannot be read: {error.strerror}"
    return InputError(where, str(path), reason, "get the right to read it, or name another path")


def _files(path: Path, where: str) -> Iterator[File]:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            yield from _inner(path, "", {}, where)
            return
        if stat.S_ISREG(status.st_mode):
            open(path, "rb").close()
    except OSError as error:
        raise unreadable(where, path, error) from error
    for is_sort, word in _SORTS.items():
        if is_sort(status.st_mode):
            reason = f"is {word}, and not a file or a folder"
            raise InputError(where, str(path), reason, "name a file or a folder")
    yield File("", str(path), status)


def _inner(
    folder: Path | str, inside: str, above: dict[tuple[int, int], str], where: str
) -> Iterator[File]:
    """Yield the files of a folder.

    `inside` is its path in the whole, empty or with a `/` at its end. `above` are the folders that
    hold it, by device and inode.
    """
    try:
        status = Path(folder).stat()
        with os.scandir(folder) as listed:
            entries = list(listed)
    except OSError as error:
        raise unreadable(where, folder, error) from error
    identity = status.st_dev, status.st_ino
    if identity in above:
        reason = f"is a link to {above[identity]}, which holds it"
        raise InputError(where, str(folder), reason, "remove the link")
    for entry in entries:
        try:
            about = entry.stat()
        except FileNotFoundError:  # A link to nothing, or a file that was just removed.
            continue
        except OSError as error:
            raise unreadable(where, entry.path, error) from error
        if stat.S_ISDIR(about.st_mode):
            higher = above | {identity: str(folder)}
            yield from _inner(entry.path, f"{inside}{entry.name}/", higher, where)
        elif stat.S_ISREG(about.st_mode):
            yield File(f"{inside}{entry.name}", entry.path, about)
