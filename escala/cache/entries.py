"""The files of a store: the results of each key, and the lock of the processes that use the store.

    {store}/blobs/ab/abcd…                         files, each named by the SHA-256 of its bytes
    {store}/entries/ab/abcd…/{time}.{sha256}.json  the results of a key; the newest is served
    {store}/incoming/                              files being written
    {store}/digests/ab/abcd…                       the SHA-256 of a large file's bytes; the name is
                                                   a hash of machine, device, inode, size, mtime
                                                   and ctime
    {store}/lock                                   shared to store and to serve, exclusive to prune

Blobs and entries are written whole, by a rename. A blob is written before the entry that names it.

The digest of a large file is computed again only if the file changed. No program can set the ctime.
So a file is read again even if a program changed it and set its mtime back. The digest of a file
that changed just before it was read is not stored: the file could change again within the same tick
of the file system's clock. If a program writes through a shared memory map, both times may change
only some seconds later; nothing in Escala writes that way.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from escala.core.errors import InputError
from escala.core.files import atomic, settle, sha256_file

#: The content of a file or a folder: relative path -> (SHA-256, bytes), or None for a folder. The
#: folder itself is `./`, folders in it end in `/`, and the path of a single file is empty.
Content = dict[str, tuple[str, int] | None]

_SHA256 = "[0-9a-f]" * 64
#: Patterns of the paths in a store.
BLOBS = f"blobs/??/{_SHA256}"
ENTRIES = f"entries/??/{_SHA256}/{'[0-9]' * 20}.{_SHA256}.json"
INCOMING = f"incoming/{'[0-9a-f]' * 32}"
DIGESTS = "digests"
#: The least bytes of a large file. Reading a smaller file is as fast as looking up its digest.
LEAST_BYTES = 2**20
#: More than the longest tick of a clock of a Linux file system (FAT: 2 s).
TICK_SECONDS = 3.0

_FICLONE = 0x40049409  # linux/fs.h
_NO_REFLINK = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM}


class Damaged(Exception):
    """A blob or an entry of the store has changed since it was stored, or cannot be read."""


@dataclass(frozen=True)
class Entry:
    """The outputs stored under a key.

    Attributes
    ----------
    path : the file that describes the entry.
    created : when the outputs were stored (ISO 8601, UTC).
    determined : the values that determine the outputs. The key is their digest.
    outputs : the content of every output, by name; None for an output that was not made.
    """

    path: Path
    created: str
    determined: dict
    outputs: dict[str, Content | None]

    @property
    def key(self) -> str:
        """The key, in hexadecimal."""
        return self.path.parent.name

    @property
    def step(self) -> str:
        """The name of the step that made the outputs."""
        return self.determined["step"]

    @property
    def blobs(self) -> dict[str, int]:
        """The size of each blob of the entry, in bytes, by digest."""
        contents = filter(None, self.outputs.values())
        return dict(file for content in contents for file in content.values() if file)

    @property
    def used(self) -> float:
        """The time at which the entry was last stored or served, in seconds since 1970."""
        return self.path.stat().st_mtime


def digest(value: object) -> str:
    """Return the SHA-256 of a value of JSON, in hexadecimal."""
    written = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(written.encode()).hexdigest()


def content(path: Path, store: Path | None = None) -> Content:
    """Return the content of a file or a folder. Links are followed.

    Parameters
    ----------
    store : the store that remembers digests of large files; None: every file is read.

    Raises
    ------
    InputError : a link leads to a folder around the link.
    OSError : a file or a folder cannot be read.
    """
    if not path.is_dir():
        return {"": (digest_file(path, store), path.stat().st_size)}
    files: Content = {}

    # `above` are the folders around this folder, by device and inode.
    def add(folder: Path, inside: str, above: dict[tuple[int, int], Path]) -> None:
        status = folder.stat()
        identity = status.st_dev, status.st_ino
        if identity in above:
            reason = f"is a link to {above[identity]}, which holds it"
            raise InputError(folder, None, reason, "remove the link")
        files[inside or "./"] = None
        for inner in folder.iterdir():
            name = f"{inside}{inner.name}"
            if inner.is_dir():
                add(inner, f"{name}/", above | {identity: folder})
            else:
                files[name] = digest_file(inner, store), inner.stat().st_size

    add(path, "", {})
    return dict(sorted(files.items()))


def blob(store: Path, sha256: str) -> Path:
    """Return the file of a store for a digest."""
    return store / "blobs" / sha256[:2] / sha256


def folder(store: Path, key: str) -> Path:
    """Return the folder of the entries of a key."""
    return store / "entries" / key[:2] / key


def read(path: Path) -> Entry:
    """Read an entry.

    Raises
    ------
    Damaged : the entry differs from what was written.
    """
    try:
        written = path.read_bytes()
        if hashlib.sha256(written).hexdigest() != path.name.split(".")[1]:
            raise ValueError("its digest is another")
        content = json.loads(written)
        if digest(content["determined"]) != path.parent.name:
            raise ValueError("it belongs to another key")
        outputs = {name: output and _check(output) for name, output in content["outputs"].items()}
        return Entry(path, content["created"], content["determined"], outputs)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(f"{path}: {error}") from None


def _check(output: dict) -> Content:
    """Return the content of an output. Refuse paths out of its folder, and malformed values."""
    for inner, file in output.items():
        path = PurePosixPath(inner)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{inner} is outside of its folder")
        if file is not None:
            sha256, size = file
            if not (isinstance(sha256, str) and re.fullmatch(_SHA256, sha256)):
                raise ValueError(f"{sha256!r} is not a SHA-256")
            if not isinstance(size, int):
                raise ValueError(f"{size!r} is not a size")
    return {inner: file and tuple(file) for inner, file in output.items()}


def damage(store: Path, path: Path) -> str | None:
    """Return the fault of a blob or an entry of the store, or None."""
    try:
        if path.match(BLOBS):
            return None if sha256_file(path) == path.name else "not the bytes that were stored"
        lost = [sha256 for sha256 in read(path).blobs if not blob(store, sha256).exists()]
        return f"{len(lost)} of its files are missing" if lost else None
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror
    except Damaged as error:
        return str(error).removeprefix(f"{path}: ") if path.exists() else None


def keep(store: Path, determined: dict, outputs: Mapping[str, Path]) -> None:
    """Store outputs: first every blob, then the entry that names the blobs.

    An existing blob is read again. A damaged blob is replaced.

    Raises
    ------
    OSError : the store cannot be written, or an output changed meanwhile.
    """
    contents = {name: content(path) if path.exists() else None for name, path in outputs.items()}
    created = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"created": created, "determined": determined, "outputs": contents}
    written = json.dumps(entry, indent=1, allow_nan=False).encode()
    inside = folder(store, digest(determined))
    # The newest entry must come last, even if the clock was set back since the previous entry.
    last = max((int(path.name[:20]) for path in inside.glob("*.json")), default=0)
    name = f"{max(time.time_ns(), last + 1):020d}.{hashlib.sha256(written).hexdigest()}.json"
    with hold_lock(store):
        for output, files in contents.items():
            for inner, file in (files or {}).items():
                if file is None:  # A folder.
                    continue
                stored, source = blob(store, file[0]), outputs[output] / inner
                if stored.exists() and damage(store, stored) is None:
                    continue
                with temporary_file(store) as temporary:
                    _copy(source, temporary)
                    if sha256_file(temporary) != stored.name:
                        raise OSError(errno.EBUSY, "changed while it was stored", str(source))
                    _protect(temporary)
                    settle(temporary, stored)
        with temporary_file(store) as temporary:
            temporary.write_bytes(written)
            _protect(temporary)
            settle(temporary, inside / name)


def restore(store: Path, entry: Entry, outputs: Mapping[str, Path]) -> None:
    """Copy all outputs to temporary paths. If no copy is damaged, rename the copies to the outputs.

    Raises
    ------
    Damaged : a blob is damaged.
    OSError : an output cannot be written.
    """
    with ExitStack() as finished:
        for name, path in outputs.items():
            stored = entry.outputs[name]
            if stored is None:
                continue
            temporary = finished.enter_context(atomic(path))
            for inner in sorted(inner for inner, file in stored.items() if file is None):
                (temporary / inner).mkdir(parents=True, exist_ok=True)
            for inner, file in stored.items():
                if file is not None:
                    _fetch(blob(store, file[0]), temporary / inner)
                    # Snakemake refuses to make a file again that the user may not write to.
                    if inner:
                        _protect(temporary / inner)
    for name, path in outputs.items():
        if entry.outputs[name] is None:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _fetch(stored: Path, target: Path) -> None:
    """Copy a blob, and compare the digest of the copy."""
    try:
        open(stored, "rb").close()
    except OSError as error:
        raise Damaged(f"{stored}: {error.strerror}") from None
    try:
        _copy(stored, target)
    except OSError as error:
        # Other errors concern the file that is written.
        if error.errno in (errno.EIO, errno.ESTALE):
            raise Damaged(f"{stored}: {error.strerror}") from None
        raise OSError(error.errno, error.strerror, str(target)) from None
    if sha256_file(target) != stored.name:
        raise Damaged(f"{stored}: not the bytes that were stored")


def _copy(source: Path, target: Path) -> None:
    """Copy a file's bytes, by copy-on-write blocks if the file system supports them."""
    with open(source, "rb") as reading, open(target, "xb") as writing:
        try:
            fcntl.ioctl(writing, _FICLONE, reading.fileno())
        except OSError as error:
            if error.errno not in _NO_REFLINK:
                raise
            shutil.copyfile(source, target)


def _protect(path: Path) -> None:
    """Remove all permissions to write to a file."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


@contextmanager
def temporary_file(store: Path) -> Iterator[Path]:
    """Yield a path for a file to store. Remove the file at the end of the block."""
    temporary = store / "incoming" / uuid.uuid4().hex
    temporary.parent.mkdir(exist_ok=True)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def hold_lock(store: Path, alone: bool = False) -> Iterator[None]:
    """Hold the store's lock, exclusively if `alone`. The kernel frees it if this process dies."""
    store.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(store / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        # A store that is read-only for this user can still serve.
        if alone or error.errno not in (errno.EACCES, errno.EROFS):
            raise
        handle = os.open(store / "lock", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def digest_file(path: Path, store: Path | None) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal. Look it up, or compute it.

    Parameters
    ----------
    store : the folder with `digests`. If it is None or not usable, the file is read.

    Raises
    ------
    OSError : the file cannot be read.
    """
    before = path.stat()
    if store is None or before.st_size < LEAST_BYTES:
        return sha256_file(path)
    stored = _digest_file(store, before)
    with suppress(OSError):
        if re.fullmatch(_SHA256, sha256 := stored.read_text(encoding="utf-8")):
            return sha256
    began = time.time()
    sha256 = sha256_file(path)
    changed = max(before.st_mtime, before.st_ctime)
    if changed + TICK_SECONDS < began and _digest_file(store, path.stat()) == stored:
        with suppress(OSError), atomic(stored, durable=False) as temporary:
            temporary.write_text(sha256, encoding="utf-8")
    return sha256


def _digest_file(store: Path, stat: os.stat_result) -> Path:
    """Return the file of a digest, by the place, size and times of the digested file."""
    times = stat.st_mtime_ns, stat.st_ctime_ns
    identity = os.uname().nodename, stat.st_dev, stat.st_ino, stat.st_size, *times
    name = hashlib.sha256(repr(identity).encode()).hexdigest()
    return store / DIGESTS / name[:2] / name
