"""Keep results in a store. The key of a result is a digest of everything that determined it.

A key is the SHA-256 of: the name of a step, the content of its inputs, its parameters, the code and
the packages that it declares (`escala.cache.code`), the variables and files of the user that can
change a result (`escala.core.variables`), `FORMAT`, and the machine of a measurement. To *serve* a
result is to copy it from the store. The digest of every copy is computed. If it differs from the
stored digest, the copy is not served. `escala.cache.entries` describes the files.

`ESCALA_STORE` names the folder. The default is `.escala/store` in the working directory; `off` uses
no store. If the store cannot be used, a line says so and the work goes on without it. A store is
measured, checked and pruned here, also while workflows use it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from escala.cache.code import Code
from escala.cache.entries import (
    BLOBS,
    DIGESTS,
    ENTRIES,
    INCOMING,
    Damaged,
    Entry,
    blob,
    content,
    damage,
    digest,
    folder,
    hold_lock,
    keep,
    read,
    restore,
)
from escala.core import variables
from escala.core.console import say
from escala.core.errors import InputError

#: A number to increase when the meaning of an entry, or the computation of a key, changes.
FORMAT = 2
LOCATION, DEFAULT, OFF = "ESCALA_STORE", ".escala/store", "off"
AGAIN = "ESCALA_MEASURE_AGAIN"


def location() -> Path | None:
    """Return the folder of the store, absolute, or None if it is turned off."""
    named = os.environ.get(LOCATION) or DEFAULT
    return None if named == OFF else Path(named).absolute()


def get_or_compute(
    step: str,
    *,
    code: Code,
    inputs: Mapping[str, Path],
    parameters: Mapping,
    outputs: Mapping[str, Path],
    make: Callable[[], None],
    optional: Collection[str] = (),
) -> str:
    """Serve the outputs of a step from the store, or make and store them: `served` or `made`.

    Parameters
    ----------
    step, code, inputs, parameters : see `Shelf`.
    outputs : the files and folders that the step makes. They replace existing files and folders.
    make : makes the outputs.
    optional : names of outputs that the step may leave out.

    Raises
    ------
    OSError : an input is missing or cannot be read; an output was not made or cannot be written.
    InputError : an input is a folder with a link to a folder around the link.
    Exception : every exception of `make`.
    """
    shelf = Shelf(step, code, inputs, parameters)
    served = shelf.serve(outputs)
    if served:
        return "served"
    make()
    for name, path in outputs.items():
        if name not in optional and not path.exists():
            raise FileNotFoundError(errno.ENOENT, f"the step {step} did not make it", str(path))
    if served is not None:
        shelf.keep(outputs)
    return "made"


class Shelf:
    """Entries of the store under the key of a step.

    Parameters
    ----------
    step : the name of the step, for people and for the key.
    code : the files and packages that decide the outputs.
    inputs : files and folders that the step reads. The key depends on their content, not on their
        paths.
    parameters : all other values that determine the outputs, as values of JSON.
    measurement : the machine, for a step that measures. `ESCALA_MEASURE_AGAIN=1` repeats the step.

    Raises
    ------
    OSError : an input is missing or cannot be read.
    """

    def __init__(
        self,
        step: str,
        code: Code,
        inputs: Mapping[str, Path],
        parameters: Mapping,
        measurement: Mapping | None = None,
    ) -> None:
        self._step, self._store = step, location()
        # The variables are read once, because libraries that the step loads set variables.
        environment = variables.describe()

        def read_key_parts() -> dict:
            parts = {
                "format": FORMAT,
                "step": step,
                "inputs": {name: content(path, self._store) for name, path in inputs.items()},
                "parameters": dict(parameters),
                "code": code.files(),
                "packages": dict(code.versions),
                "measurement": None if measurement is None else dict(measurement),
                "environment": environment,
            }
            # This is a copy, because the step may change its parameters.
            return json.loads(json.dumps(parts, allow_nan=False))

        self._read_key_parts = read_key_parts
        self._determined = read_key_parts() if self._store else {}
        self._key = digest(self._determined)

    def measurements(self, output: str) -> list[tuple[Entry, bytes]]:
        """Return the undamaged entries, oldest first, each with the bytes of one output file.

        The list is empty without a store, or with `ESCALA_MEASURE_AGAIN`.
        """
        undamaged: list[tuple[Entry, bytes]] = []
        if self._store is None or not self._store.exists() or os.environ.get(AGAIN) == "1":
            return undamaged
        with _go_on_without(self._store), hold_lock(self._store):
            for path in sorted(folder(self._store, self._key).glob("*.json")):
                with suppress(Damaged, LookupError, TypeError, OSError):
                    entry = read(path)
                    ((sha256, _),) = filter(None, entry.outputs[output].values())
                    written = blob(self._store, sha256).read_bytes()
                    if hashlib.sha256(written).hexdigest() == sha256:
                        undamaged.append((entry, written))
        return undamaged

    def serve(self, outputs: Mapping[str, Path], entry: str = "*.json") -> bool | None:
        """Replace outputs by copies of the newest undamaged entry.

        Parameters
        ----------
        entry : pattern of the names of the entries that may be served.

        Returns
        -------
        Whether the outputs were replaced; None without a store, and if the store cannot be used.

        Raises
        ------
        OSError : an output cannot be written.
        """
        if self._store is None:
            return None
        unwritable = None
        with _go_on_without(self._store), hold_lock(self._store):
            for path in sorted(folder(self._store, self._key).glob(entry), reverse=True):
                try:
                    stored = read(path)
                    # Another call stored the same work, with other names of outputs.
                    if stored.outputs.keys() != outputs.keys():
                        continue
                    restore(self._store, stored, outputs)
                except OSError as error:
                    # This error concerns an output. It is raised after the block, which catches
                    # errors of the store.
                    unwritable = error
                    break
                except Damaged as error:
                    say(f"store: damaged, not served: {error}")
                    with suppress(OSError):
                        path.unlink(missing_ok=True)
                    continue
                # Set the time of last use. Only the owner of the entry may set it.
                with suppress(OSError):
                    os.utime(path)
                return True
            else:
                return False
        if unwritable:
            raise unwritable
        return None

    def keep(self, outputs: Mapping[str, Path]) -> None:
        """Store outputs, unless a value that determines them has changed since the start."""
        if self._store is None:
            return
        if self._read_key_parts() != self._determined:
            say(f"{self._step}: its inputs or its code changed while it ran: not stored")
            return
        with _go_on_without(self._store):
            keep(self._store, self._determined, outputs)


@contextmanager
def _go_on_without(store: Path) -> Iterator[None]:
    """If the store fails in the block, print a line and continue after the block."""
    try:
        yield
    except InputError as error:  # An output holds a link to a folder around it.
        say(f"store {store}: {error} The work goes on without it")
    except OSError as error:
        about = f" ({error.filename})" if error.filename else ""
        say(f"store {store}: {error.strerror or error}{about}; the work goes on without it")


def entries(store: Path) -> Iterator[Entry]:
    """Yield the entries of a store, oldest first, without damaged ones."""
    for path in sorted(store.glob(ENTRIES), key=lambda path: path.name):
        with suppress(Damaged):
            yield read(path)


def _files(store: Path, *patterns: str) -> list[Path]:
    """Return the files of a store that match patterns. Other files in its folder are left out."""
    return [path for pattern in patterns for path in sorted(store.glob(pattern)) if path.is_file()]


@dataclass(frozen=True)
class Size:
    """The size of a store.

    Attributes
    ----------
    steps : the number of entries and the bytes of each step. A file of several steps counts for
        each of them.
    files, bytes : the number of files of the whole store, and their bytes. Each file counts once.
    unneeded_bytes : the bytes of files that no entry needs.
    """

    steps: dict[str, tuple[int, int]]
    files: int
    bytes: int
    unneeded_bytes: int


def size(store: Path) -> Size:
    """Return the size of a store."""
    with hold_lock(store):
        by_step: dict[str, list[Entry]] = {}
        for entry in entries(store):
            by_step.setdefault(entry.step, []).append(entry)
        steps, needed = {}, set()
        for step, of_step in sorted(by_step.items()):
            blobs = {sha256: size for entry in of_step for sha256, size in entry.blobs.items()}
            steps[step] = len(of_step), sum(blobs.values())
            needed |= blobs.keys()
        sizes = {}
        for path in _files(store, BLOBS, ENTRIES, INCOMING):
            with suppress(FileNotFoundError):  # Another process has removed a damaged entry.
                sizes[path] = path.stat().st_size
        unneeded = [path for path in sizes if not path.match(ENTRIES) and path.name not in needed]
        unneeded_bytes = sum(sizes[path] for path in unneeded)
        return Size(steps, len(sizes), sum(sizes.values()), unneeded_bytes)


def verify(
    store: Path, *, remove: bool = False, progress: Callable[[Iterable], Iterable] = iter
) -> dict[Path, str]:
    """Read the whole store again and return the damaged files, with the reason.

    Parameters
    ----------
    remove : remove damaged files, and the entries that need them, at the end.
    progress : shows the progress of a loop, like tqdm.
    """
    with hold_lock(store):
        paths = progress(_files(store, BLOBS, ENTRIES))
        damaged = {path: reason for path in paths if (reason := damage(store, path))}
    if remove and damaged:
        with hold_lock(store, alone=True):
            # Another process may have replaced a damaged blob in the meantime. Entries are checked
            # last, because an entry is damaged if one of its blobs was removed.
            blobs = [path for path in damaged if path.match(BLOBS)]
            for path in [*blobs, *_files(store, ENTRIES)]:
                if damage(store, path):
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

    Pruning holds the lock exclusively, so no other process stores or serves at the same time. A
    file in `incoming`, or in no entry, was thus left by a process that was killed. All digests of
    large files are removed, too.

    Parameters
    ----------
    older_than_days : remove entries that were neither stored nor served for this time.
    larger_than_bytes : remove entries, least recently used first, until the store is no larger.
    dry_run : remove nothing.
    """
    with hold_lock(store, alone=True):
        kept = sorted(entries(store), key=lambda entry: -entry.used)
        if older_than_days is not None:
            oldest = time.time() - older_than_days * 24 * 3600
            kept = [entry for entry in kept if entry.used >= oldest]
        needed: dict[str, int] = {}
        needed_files: set[Path] = set()
        entry_bytes = 0
        for entry in kept:
            needed |= entry.blobs
            entry_bytes += entry.path.stat().st_size
            taken = sum(needed.values()) + entry_bytes
            if larger_than_bytes is not None and taken > larger_than_bytes:
                break
            needed_files |= {entry.path, *(blob(store, sha256) for sha256 in entry.blobs)}
        # Entries are removed first, so an entry never needs a blob that was removed.
        gone = [
            path for path in _files(store, ENTRIES, INCOMING, BLOBS) if path not in needed_files
        ]
        freed = sum(path.stat().st_size for path in gone)
        if not dry_run:
            shutil.rmtree(store / DIGESTS, ignore_errors=True)
            for path in gone:
                path.unlink()
            for pattern in ("entries/??/*", "entries/??", "blobs/??"):
                for folder in store.glob(pattern):
                    with suppress(OSError):  # The folder is not empty.
                        folder.rmdir()
        return Pruned(sum(path.match(ENTRIES) for path in gone), len(gone), freed)
