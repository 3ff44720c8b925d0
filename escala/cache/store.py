"""Keep results in a store, under a digest of all that determined them.

    {store}/blobs/ab/abcd…                       files, each named by the SHA-256 of its bytes
    {store}/entries/ab/abcd…/{time}.{sha256}.json  the results of a key; the newest is served
    {store}/incoming/                            files being written
    {store}/digests/                             see `escala.cache.digests`
    {store}/lock                                 shared to store and to serve, exclusive to prune

A key is the SHA-256 of a step's name, the content of its inputs, its parameters, its code, the
versions of the packages the code imports, what variables and files of the user decide
(`escala.core.variables`), for a measurement the machine, and `FORMAT`. Blobs and entries are
written whole, by a rename, and a blob before the entry that names it. To *serve* a result is to
copy it from the store. Every copy is digested, and one whose digest differs from the stored one is
not served.

`ESCALA_STORE` names the folder. The default is `.escala/store` in the working directory; `off` uses
no store. If the store cannot be used, a line says so and the work goes on without it.
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
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from escala.cache import digests
from escala.cache.sources import code_digest, package_versions, sources
from escala.core import variables
from escala.core.errors import InputError
from escala.core.files import atomic, settle, sha256_file

__all__ = ["code_digest", "get_or_compute", "location", "prune", "read", "size", "verify"]

#: Increase it when the meaning of an entry, or the computation of a key, changes.
FORMAT = 1
LOCATION, DEFAULT, OFF = "ESCALA_STORE", ".escala/store", "off"
AGAIN = "ESCALA_MEASURE_AGAIN"

#: The content of a file or a folder: relative path -> (SHA-256, bytes), or None for a folder. The
#: folder itself is `./`, folders in it end in `/`, and the path of a single file is empty.
Content = dict[str, tuple[str, int] | None]
#: Shows the progress of a long loop, like tqdm.
Progress = Callable[[Iterable], Iterable]

_FICLONE = 0x40049409  # linux/fs.h
_HEX = "[0-9a-f]"
_ENTRY = f"{'[0-9]' * 20}.{_HEX * 64}.json"
_PATTERNS = (
    f"blobs/{_HEX * 2}/{_HEX * 64}",
    f"entries/{_HEX * 2}/{_HEX * 64}/{_ENTRY}",
    f"incoming/{_HEX * 32}",
)
_SHA256 = re.compile(f"{_HEX}{{64}}")
#: Errors of the file that a copy is written to: the other one has been opened.
_UNWRITABLE = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EFBIG,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOSPC,
    errno.EPERM,
    errno.EROFS,
}
_NO_REFLINK = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM}


class Damaged(Exception):
    """A blob or an entry of the store differs from what was stored, or cannot be read."""


class _UnwritableError(Exception):
    """A result cannot be written where it belongs; the cause is the OSError."""


@dataclass(frozen=True)
class Entry:
    """The outputs stored under a key.

    Attributes
    ----------
    path : the file that describes it.
    key, step, created : its key, the step's name, and when it was stored (ISO 8601, UTC).
    determined : all that the key is the digest of.
    outputs : content of every output, by name; None for an output that was not made.
    """

    path: Path
    key: str
    step: str
    created: str
    determined: dict
    outputs: dict[str, Content | None]

    @property
    def blobs(self) -> dict[str, int]:
        """Size of each blob it needs, in bytes, by digest."""
        contents = filter(None, self.outputs.values())
        return dict(file for content in contents for file in content.values() if file)

    @property
    def used(self) -> float:
        """Time at which it was last stored or served, in seconds since 1970."""
        return self.path.stat().st_mtime


def location() -> Path | None:
    """Return the folder of the store, absolute, or None if it is turned off."""
    named = os.environ.get(LOCATION) or DEFAULT
    return None if named == OFF else Path(named).absolute()


def get_or_compute(
    step: str,
    *,
    code: str,
    inputs: Mapping[str, Path],
    parameters: Mapping,
    outputs: Mapping[str, Path],
    make: Callable[[], bool | None],
    measurement: Mapping | None = None,
    packages: Collection[str] = (),
    chosen: Collection[str] = (),
    optional: Collection[str] = (),
    serve: bool = True,
) -> str:
    """Serve the outputs of a step from the store, or make them and store them.

    Parameters
    ----------
    step : its name, for people and for the key.
    code : the module that does the step, such as `scripts.encode`; see `escala.cache.sources`.
    inputs : files and folders it reads. Their content is in the key, their path is not.
    parameters : everything else that determines the outputs; serialisable as JSON.
    outputs : files and folders it makes. Existing ones are replaced. Served outputs are copies, so
        changes of them do not reach the store; files in folders are write-protected.
    make : makes the outputs. It returns False if they must not be stored.
    measurement : for a step that measures, the machine. `ESCALA_MEASURE_AGAIN=1` repeats such a
        step; earlier measurements stay in the store.
    packages : distributions that determine the outputs, although the code does not import them.
    chosen : modules that the step picks from a registry by name; see
        `escala.cache.sources.sources`.
    optional : names of outputs that the step may leave out.
    serve : False makes the outputs anew, as `ESCALA_MEASURE_AGAIN` does.

    Returns
    -------
    `served`, or `made`.

    Raises
    ------
    FileNotFoundError : an input is missing, or an output was not made.
    OSError : an input cannot be read, or an output cannot be written.
    InputError : an input holds a link to a folder that holds it.
    All exceptions of `make`. A fault of the store raises none: it is a line on standard error.
    """
    store = location()

    # Read once, because libraries that the step loads set variables of this process.
    environment = variables.describe()

    def determined() -> dict:
        contents = {name: content(path, store) for name, path in inputs.items()}
        found = _determined(step, code, contents, parameters, measurement, packages, chosen)
        return found | {"environment": environment}

    if store is None:
        _make(step, make, outputs, optional)
        return "made"
    # A copy, because the step may change its parameters.
    known = json.loads(_canonical(determined()))
    again = not serve or (measurement is not None and os.environ.get(AGAIN) == "1")
    try:
        with _ignore_store_errors(store) as usable:
            if not again and _serve(store, _digest(known), outputs):
                return "served"
    except _UnwritableError as error:
        raise error.__cause__ from None
    if _make(step, make, outputs, optional) and usable:
        if _digest(determined()) == _digest(known):
            with _ignore_store_errors(store):
                _keep(store, known, outputs)
        else:
            _say(f"{step}: its inputs or its code changed while it ran: not stored")
    return "made"


class Work(NamedTuple):
    """What distinguishes measurements of one step, of the same inputs and on one machine.

    See `get_or_compute`.
    """

    parameters: Mapping
    chosen: Collection[str]


def kept(
    step: str,
    works: Iterable[Work],
    output: str,
    *,
    code: str,
    inputs: Mapping[str, Path],
    measurement: Mapping,
    packages: Collection[str] = (),
) -> list[list[bytes]]:
    """Return one output of every measurement that the store holds, for each work, oldest first.

    Measurements are none where they are not to be served: there is no store, or
    `ESCALA_MEASURE_AGAIN` is set. Damaged ones are left out.

    Parameters
    ----------
    output : name of an output that is a file.
    step, code, inputs, measurement, packages : see `get_or_compute`.
    """
    store, found = location(), [[] for _ in works]
    if store is None or not store.exists() or os.environ.get(AGAIN) == "1":
        return found
    contents = {name: content(path, store) for name, path in inputs.items()}
    with _ignore_store_errors(store), _locked(store):
        for work, of_work in zip(works, found, strict=True):
            known = _determined(
                step, code, contents, work.parameters, measurement, packages, work.chosen
            )
            folder = _folder(store, _digest(json.loads(_canonical(known))))
            for path in sorted(folder.glob("*.json")):
                with suppress(Damaged, LookupError, TypeError, OSError):
                    ((digest, _),) = filter(None, read(path).outputs[output].values())
                    blob = _blob(store, digest).read_bytes()
                    if hashlib.sha256(blob).hexdigest() == digest:
                        of_work.append(blob)
    return found


def _determined(
    step: str,
    code: str,
    contents: Mapping[str, Content],
    parameters: Mapping,
    measurement: Mapping | None,
    packages: Collection[str],
    chosen: Collection[str],
) -> dict:
    """Return all that a key is the digest of."""
    reached = sources(code, chosen=chosen)
    return {
        "format": FORMAT,
        "step": step,
        "inputs": dict(contents),
        "parameters": dict(parameters),
        "code": reached.files,
        "packages": package_versions(reached.packages, packages),
        "measurement": None if measurement is None else dict(measurement),
        "environment": variables.describe(),
    }


def _make(
    step: str, make: Callable, outputs: Mapping[str, Path], optional: Collection[str]
) -> bool:
    """Make the outputs, and return whether they may be stored."""
    if make() is False:
        return False
    for name, path in outputs.items():
        if name not in optional and not path.exists():
            raise FileNotFoundError(errno.ENOENT, f"the step {step} did not make it", str(path))
    return True


def content(path: Path, store: Path | None = None) -> Content:
    """Return the content of a file or a folder. Links are followed.

    Parameters
    ----------
    store : the store that remembers digests of large files; None: every file is read.

    Raises
    ------
    InputError : a link leads to a folder that holds it.
    OSError : something cannot be read.
    """
    if not path.is_dir():
        return {"": (digests.sha256(path, store), path.stat().st_size)}
    return dict(sorted(_inner(path, "", {}, store)))


def _inner(
    folder: Path, inside: str, above: dict[tuple[int, int], Path], store: Path | None
) -> Iterator[tuple[str, tuple[str, int] | None]]:
    """Yield the content of a folder as entries of a `Content`.

    Parameters
    ----------
    inside : path of the folder in the whole, empty or with a `/` at its end.
    above : the folders that hold it, by device and inode.
    """
    status = folder.stat()
    identity = status.st_dev, status.st_ino
    if identity in above:
        raise InputError(
            folder, None, f"is a link to {above[identity]}, which holds it", "remove the link"
        )
    yield inside or "./", None
    for path in folder.iterdir():
        name = f"{inside}{path.name}"
        if path.is_dir():
            yield from _inner(path, f"{name}/", above | {identity: folder}, store)
        else:
            yield name, (digests.sha256(path, store), path.stat().st_size)


def read(path: Path) -> Entry:
    """Read an entry of the store.

    Raises
    ------
    Damaged : it differs from what was written.
    """
    try:
        written = path.read_bytes()
        if hashlib.sha256(written).hexdigest() != path.name.split(".")[1]:
            raise ValueError("its digest is another")
        said = json.loads(written)
        key = _digest(said["determined"])
        if key != path.parent.name:
            raise ValueError("it belongs to another key")
        outputs = {
            name: output
            and {_inside(inner): file and _stored(*file) for inner, file in output.items()}
            for name, output in said["outputs"].items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(f"{path}: {error}") from None
    return Entry(
        path, key, said["determined"]["step"], said["created"], said["determined"], outputs
    )


def entries(store: Path) -> Iterator[Entry | Path]:
    """Yield every entry, in the order of storing, and for damaged ones the path."""
    for path in sorted(store.glob(_PATTERNS[1]), key=lambda path: path.name):
        try:
            yield read(path)
        except Damaged:
            if path.exists():
                yield path


@dataclass
class Size:
    """The size of a store: entries and bytes by step, and bytes that no entry needs.

    A file that several entries hold is stored once: it counts for each step in `steps`, and once in
    `bytes`, the size of the whole store.
    """

    entries: int = 0
    files: int = 0
    bytes: int = 0
    unneeded_bytes: int = 0
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)


def size(store: Path) -> Size:
    """Return the size of a store."""
    with _locked(store):
        found, steps = Size(), {}
        for entry in entries(store):
            if isinstance(entry, Entry):
                found.entries += 1
                blobs, count = steps.setdefault(entry.step, ({}, [0]))
                blobs |= entry.blobs
                count[0] += 1
        needed = {digest for blobs, _ in steps.values() for digest in blobs}
        found.steps = {
            step: (count[0], sum(blobs.values())) for step, (blobs, count) in sorted(steps.items())
        }
        for path in _files(store):
            try:
                written = path.stat().st_size
            except FileNotFoundError:
                continue  # Another process has removed a damaged entry.
            found.files += 1
            found.bytes += written
            if _is_incoming(path) or (_is_blob(path) and path.name not in needed):
                found.unneeded_bytes += written
        return found


def verify(store: Path, *, remove: bool = False, progress: Progress = iter) -> dict[Path, str]:
    """Read the whole store again and return the damaged files, with the reason.

    Workflows may use the store meanwhile. With `remove`, damaged files and the entries that need
    them are removed at the end.
    """
    with _locked(store):
        damaged = {
            path: reason
            for path in progress([path for path in _files(store) if not _is_incoming(path)])
            if (reason := _damage(store, path))
        }
    if remove and damaged:
        with _locked(store, alone=True):
            # Another process may have replaced a damaged blob in the meantime.
            for path in sorted(damaged, key=_is_blob, reverse=True):
                if _damage(store, path):
                    path.unlink(missing_ok=True)
            for entry in entries(store):
                path = entry.path if isinstance(entry, Entry) else entry
                if _damage(store, path):
                    path.unlink(missing_ok=True)
    return damaged


@dataclass(frozen=True)
class Pruned:
    """The number of entries, files and bytes that pruning removed, or would remove."""

    entries: int
    files: int
    bytes: int


def prune(
    store: Path,
    *,
    older_than_days: float | None = None,
    larger_than_bytes: int | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove entries that were not used for long, and all files that no entry needs.

    It holds the lock exclusively, so no other process stores or serves meanwhile. Files in
    `incoming`, or in no entry, were then left by a process that was killed. Remembered digests are
    forgotten.

    Parameters
    ----------
    older_than_days : remove entries that were neither stored nor served for this time.
    larger_than_bytes : remove entries, least recently used first, until the rest takes no more.
    dry_run : remove nothing.
    """
    with _locked(store, alone=True):
        found = list(entries(store))
        kept = sorted((e for e in found if isinstance(e, Entry)), key=lambda entry: -entry.used)
        if older_than_days is not None:
            oldest = time.time() - older_than_days * 24 * 3600
            kept = [entry for entry in kept if entry.used >= oldest]
        if larger_than_bytes is not None:
            kept = _within(kept, larger_than_bytes)
        needed = {digest for entry in kept for digest in entry.blobs}
        stay = {entry.path for entry in kept} | {_blob(store, digest) for digest in needed}
        # Entries are removed first, so an entry never needs a blob that was removed.
        gone = sorted((path for path in _files(store) if path not in stay), key=_is_blob)
        freed = sum(path.stat().st_size for path in gone)
        if not dry_run:
            shutil.rmtree(store / digests.FOLDER, ignore_errors=True)
            for path in gone:
                path.unlink()
            _remove_empty_folders(store)
        return Pruned(len(found) - len(kept), len(gone), freed)


def _within(kept: list[Entry], limit: int) -> list[Entry]:
    """Return the entries, most recently used first, that take no more than `limit` bytes."""
    needed: set[str] = set()
    total = 0
    for count, entry in enumerate(kept):
        new = {digest: size for digest, size in entry.blobs.items() if digest not in needed}
        total += sum(new.values()) + entry.path.stat().st_size
        if total > limit:
            return kept[:count]
        needed |= new.keys()
    return kept


def _damage(store: Path, path: Path) -> str | None:
    """Return the fault of a blob or an entry of the store, or None."""
    if not path.exists():
        return None
    if _is_blob(path):
        try:
            return None if sha256_file(path) == path.name else "not the bytes that were stored"
        except OSError as error:
            return error.strerror
    try:
        lost = [digest for digest in read(path).blobs if not _blob(store, digest).exists()]
    except Damaged as error:
        return str(error).removeprefix(f"{path}: ")
    return f"{len(lost)} of its files are missing" if lost else None


def _serve(store: Path, key: str, outputs: Mapping[str, Path]) -> bool:
    """Replace the outputs by copies of the stored ones, if these are undamaged."""
    with _locked(store):
        for path in sorted(_folder(store, key).glob("*.json"), reverse=True):
            try:
                entry = read(path)
                # The same work, stored by a call that named its outputs differently. The digest in
                # the entry's name tells that it is as it was written.
                if entry.outputs.keys() != outputs.keys():
                    continue
                _restore(store, entry, outputs)
            except OSError as error:
                raise _UnwritableError from error
            except Damaged as error:
                _say(f"store: damaged, not served: {error}")
                with suppress(OSError):
                    path.unlink(missing_ok=True)
                continue
            # The time of last use. Another user's entry keeps the time of storing.
            with suppress(OSError):
                os.utime(path)
            return True
    return False


def _restore(store: Path, entry: Entry, outputs: Mapping[str, Path]) -> None:
    """Copy all outputs to temporary paths beside their own, and rename them if none is damaged."""
    with ExitStack() as finished:
        for name, path in outputs.items():
            stored = entry.outputs[name]
            if stored is not None:
                temporary = finished.enter_context(atomic(path))
                for folder in sorted(inner for inner, file in stored.items() if file is None):
                    (temporary / folder).mkdir(parents=True, exist_ok=True)
                for inner, file in stored.items():
                    if file is not None:
                        target = temporary / inner if inner else temporary
                        _fetch(store, file[0], target)
                        # Snakemake refuses to make a file again if its user may not write to it.
                        if inner:
                            _protect(target)
    for name, path in outputs.items():
        if entry.outputs[name] is None:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _fetch(store: Path, digest: str, target: Path) -> None:
    """Copy a blob, and compare the digest of the copy."""
    blob = _blob(store, digest)
    try:
        open(blob, "rb").close()
    except OSError as error:
        raise Damaged(f"{blob}: {error.strerror}") from None
    try:
        _copy(blob, target)
    except OSError as error:
        if error.errno in _UNWRITABLE:
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise Damaged(f"{blob}: {error.strerror}") from None
    if sha256_file(target) != digest:
        raise Damaged(f"{blob}: not the bytes that were stored")


def _keep(store: Path, determined: dict, outputs: Mapping[str, Path]) -> None:
    """Store the outputs: first every blob, then the entry that names them."""
    made = {name: content(path) if path.exists() else None for name, path in outputs.items()}
    created = datetime.now(UTC).isoformat(timespec="seconds")
    said = {"created": created, "determined": determined, "outputs": made}
    written = json.dumps(said, indent=1, allow_nan=False).encode()
    folder = _folder(store, _digest(determined))
    # The newest is served, even if the clock was set back since the last one.
    last = max((int(path.name[:20]) for path in folder.glob(_ENTRY)), default=0)
    name = f"{max(time.time_ns(), last + 1):020d}.{hashlib.sha256(written).hexdigest()}.json"
    with _locked(store):
        for output, held in made.items():
            for inner, file in (held or {}).items():
                if file is not None:
                    path = outputs[output]
                    _keep_blob(store, path / inner if inner else path, file[0])
        with _incoming(store) as temporary:
            temporary.write_bytes(written)
            _protect(temporary)
            settle(temporary, folder / name)


def _keep_blob(store: Path, source: Path, digest: str) -> None:
    """Store one file. An existing blob is read again, and replaced if it is damaged."""
    blob = _blob(store, digest)
    if blob.exists() and _damage(store, blob) is None:
        return
    with _incoming(store) as temporary:
        _copy(source, temporary)
        if sha256_file(temporary) != digest:
            raise OSError(errno.EBUSY, "changed while it was stored", str(source))
        _protect(temporary)
        settle(temporary, blob)


@contextmanager
def _incoming(store: Path) -> Iterator[Path]:
    """Yield a path for a file that is being stored, and remove it at the end of the block."""
    folder = store / "incoming"
    folder.mkdir(exist_ok=True)
    temporary = folder / uuid.uuid4().hex
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    """Copy a file's bytes, by copy-on-write blocks if the file system supports them."""
    with open(source, "rb") as reading, open(target, "xb") as writing:
        try:
            fcntl.ioctl(writing, _FICLONE, reading.fileno())
            return
        except OSError as error:
            if error.errno not in _NO_REFLINK:
                raise
    shutil.copyfile(source, target)


def _protect(path: Path) -> None:
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


@contextmanager
def _locked(store: Path, alone: bool = False) -> Iterator[None]:
    """Hold the store's lock, exclusively if `alone`. The kernel frees it if this process dies."""
    store.mkdir(parents=True, exist_ok=True)
    path = store / "lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        # A store that is read-only for this user can still serve.
        if alone or error.errno not in (errno.EACCES, errno.EROFS):
            raise
        handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


@contextmanager
def _ignore_store_errors(store: Path) -> Iterator[list[Path]]:
    """Yield a list with the store. If the store fails, print a line, empty the list and go on."""
    usable = [store]
    try:
        yield usable
    except OSError as error:
        usable.clear()
        about = f" ({error.filename})" if error.filename else ""
        _say(f"store {store}: {error.strerror or error}{about}; the work goes on without it")


def _say(message: str) -> None:
    print(f"escala: {message}", file=sys.stderr, flush=True)


def _canonical(said: object) -> str:
    return json.dumps(said, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(said: object) -> str:
    return hashlib.sha256(_canonical(said).encode()).hexdigest()


def _inside(path: str) -> str:
    """Return a relative path as a path in a folder, if it does not leave the folder."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts:
        raise ValueError(f"{path} is outside of its folder")
    return path


def _stored(digest: str, size: int) -> tuple[str, int]:
    """Return the digest and the size of a file in an entry, if both are valid."""
    if not (isinstance(digest, str) and _SHA256.fullmatch(digest) and isinstance(size, int)):
        raise ValueError(f"{digest!r} is not a SHA-256, or {size!r} not a size")
    return digest, size


def _blob(store: Path, digest: str) -> Path:
    return store / "blobs" / digest[:2] / digest


def _is_blob(path: Path) -> bool:
    return path.parent.parent.name == "blobs"


def _is_incoming(path: Path) -> bool:
    return path.parent.name == "incoming"


def _folder(store: Path, key: str) -> Path:
    return store / "entries" / key[:2] / key


def _files(store: Path) -> list[Path]:
    """Return the blobs, entries and unfinished files, and no other files of the folder."""
    return [path for pattern in _PATTERNS for path in sorted(store.glob(pattern)) if path.is_file()]


def _remove_empty_folders(store: Path) -> None:
    for pattern in ("entries/??/*", "entries/??", "blobs/??"):
        for folder in store.glob(pattern):
            with suppress(OSError):
                folder.rmdir()
