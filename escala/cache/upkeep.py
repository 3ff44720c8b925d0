"""Measure, check and prune a store. Workflows may use it at the same time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from escala.cache.entries import (
    BLOBS,
    DIGESTS,
    ENTRIES,
    INCOMING,
    Damaged,
    Entry,
    blob,
    damage,
    hold_lock,
    read,
)


def entries(store: Path) -> Iterator[Entry]:
    """Yield the entries of a store, oldest first, without damaged ones."""
    for path in sorted(store.glob(ENTRIES), key=lambda path: path.name):
        with suppress(Damaged):
            yield read(path)


def _files(store: Path, *patterns: str) -> list[Path]:
    """Return the files of a store that match patterns; other files in its folder are left out."""
    return [path for pattern in patterns for path in sorted(store.glob(pattern)) if path.is_file()]


@dataclass(frozen=True)
class Size:
    """The size of a store.

    Attributes
    ----------
    steps : number of entries, and bytes, of each step. A file of several steps counts for each.
    files, bytes : of the whole store; here each file counts once.
    unneeded_bytes : of files that no entry needs.
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
            # last: an entry is damaged if one of its blobs is gone.
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

    It holds the lock exclusively, so no other process stores or serves meanwhile. A file in
    `incoming`, or in no entry, is thus of a process that was killed. All digests of large files are
    removed too.

    Parameters
    ----------
    older_than_days : remove entries that were neither stored nor served for this time.
    larger_than_bytes : remove entries, least recently used first, until the rest takes no more.
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
                    with suppress(OSError):  # It is not empty.
                        folder.rmdir()
        return Pruned(sum(path.match(ENTRIES) for path in gone), len(gone), freed)
