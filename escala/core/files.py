"""Write files whole or not at all, also if the power fails; lock and digest them."""

from __future__ import annotations

import ast
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from escala.core.console import say
from escala.core.errors import InputError

# The parts of a temporary folder: the new content, in a folder named after the writer's machine;
# and the old content, while it is replaced.
_NEW, _REPLACED = os.uname().nodename, "replaced"


@contextmanager
def atomic(path: str | Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`, renamed onto it if the block succeeds.

    The block may create a file or a directory there. If the block raises, the temporary content is
    removed and `path` is as it was. The temporary content of earlier writers that were killed is
    removed, too. The temporary path has the suffix of `path`, because libraries choose a format by
    the suffix.

    Parameters
    ----------
    durable : whether the content is written to the disk before it is renamed, so that it survives a
        power loss. Writing to the disk takes time.

    Notes
    -----
    On a network file system a folder is locked on one machine only. So writers remove only the
    temporary content of writers on the same machine.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _folder_beside(path) as folder:
        temporary = folder / _NEW / path.name
        try:
            yield temporary
            if durable:
                _sync_content(temporary)
            if path.is_dir() and temporary.is_dir():
                # A folder is replaced by two renames: a kill leaves the old folder, the new one, or
                # none.
                path.replace(folder / _REPLACED)
            temporary.replace(path)
            if durable:
                _sync(path.parent)
        except OSError as error:
            # The error of a full disk does not name the file that was being written.
            if error.errno is not None and error.filename is None:
                error.filename = str(path)
            raise


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """Yield an empty folder. Remove it at the end; remove folders of killed processes, too."""
    with (
        _folder_beside(Path(tempfile.gettempdir(), name)) as folder,
        # `TemporaryDirectory` also removes folders that were made read-only.
        tempfile.TemporaryDirectory(dir=folder / _NEW) as temporary,
    ):
        yield Path(temporary)


@contextmanager
def _folder_beside(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, with a folder `_NEW`; clean up after killed writers.

    A writer holds the lock of its folder. If the writer is killed, the kernel frees the lock.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    temporary = re.compile(re.escape(f".{path.name}.") + "[a-z0-9_]{8}")  # As `mkdtemp` names it.
    names = os.listdir(path.parent)  # noqa: PTH208 - a folder of many files, at each write
    for earlier in filter(temporary.fullmatch, names):
        with ExitStack() as stack, suppress(OSError):
            lock = os.open(path.parent / earlier, flags)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # In a folder of another machine, the folder of the content has another name.
            if {inner.name for inner in (path.parent / earlier).iterdir()} <= {_NEW, _REPLACED}:
                shutil.rmtree(path.parent / earlier, ignore_errors=True)
    with ExitStack() as stack:
        while True:
            try:
                folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
            except OSError as error:
                # The error names the folder that may not be written to, and not the temporary
                # folder.
                error.filename = str(path.parent)
                raise
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            # Another writer may remove the folder before it is locked. Then this writer starts
            # again.
            with suppress(FileNotFoundError):
                lock = os.open(folder, flags)
                stack.callback(os.close, lock)
                with suppress(OSError):  # Without locks on a file system nothing is removed later.
                    fcntl.flock(lock, fcntl.LOCK_EX)
                (folder / _NEW).mkdir()
                break
        yield folder


@contextmanager
def take_turns(path: Path, waiting: str) -> Iterator[None]:
    """Let one process at a time run the block, by a lock on a folder or on a file.

    A missing file is made. A process that has to wait prints `waiting`. The kernel frees the lock
    when its process ends.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    lock = os.open(path, flags, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(waiting)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def settle(temporary: Path, target: Path) -> None:
    """Move a finished file or folder to its final path, whole or not at all.

    The content is written to the disk before the name, and the name before the function returns.
    """
    _sync_content(temporary)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary.replace(target)
    _sync(target.parent)


def _sync_content(path: Path) -> None:
    for inner in (path, *path.rglob("*")):
        if not inner.is_symlink():
            _sync(inner)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot write a folder to the disk on request.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(handle)


def is_file(path: str | Path) -> bool:
    """Return whether a word is the path of a file; a word may be too long for a path."""
    with suppress(OSError):
        return Path(path).is_file()
    return False


def sha256_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_text(path: str | Path, text: str, *, durable: bool = True) -> None:
    """Write a text by `atomic`."""
    with atomic(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any, *, durable: bool = True) -> None:
    """Write `content` as indented JSON by `atomic`; NaN and infinity are refused."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n", durable=durable)


def read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML file of the project."""
    # `yaml` is imported here, because many processes read no YAML.
    import yaml

    from escala.core.yaml12 import Loader

    return yaml.load(Path(path).read_text(encoding="utf-8"), Loader)


def read_schema(path: str | Path) -> dict:
    """Return a JSON Schema of a YAML file of the project, in which every object is closed.

    An object with `properties` allows no other keys. It requires every key without `optional:
    true`. The schemas inside conditions stay as they are.
    """
    return _close_objects(read_yaml(path))


def _close_objects(node: Any) -> Any:
    if isinstance(node, list):
        return [_close_objects(item) for item in node]
    if not isinstance(node, dict):
        return node
    conditions = ("allOf", "if", "then", "else")
    closed = {k: v if k in conditions else _close_objects(v) for k, v in node.items()}
    if "properties" in closed:
        required = [k for k, v in closed["properties"].items() if not v.get("optional")]
        closed = {"type": "object", "additionalProperties": False, "required": required} | closed
    return closed


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_format(path: Path, number: int, what: str, remedy: str, make: Callable[..., Any]) -> Any:
    """Return `make(**values)` of the values in a JSON file, which must have the format `number`.

    Raises
    ------
    InputError : the file has another format, or `make` does not take its values.
    FileNotFoundError : the file does not exist.
    """
    try:
        content = read_json(path)
        if content.pop("format") != number:
            raise ValueError
        return make(**content)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(path, None, f"is no {what} of format {number}", remedy) from None


def read_constants(path: Path) -> dict[str, Any]:
    """Return the constants of a module by name; only those with a literal as value."""
    constants = {}
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            with suppress(ValueError):
                constants |= {name: ast.literal_eval(node.value)} if name.isupper() else {}
    return constants
