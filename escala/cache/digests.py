"""Digests of large files, each computed once while the file stays the same.

    {store}/digests/ab/abcd…  the SHA-256 of a file's bytes, named by machine, device, inode, size,
                              time of the last change of the bytes, and of any change of the inode

No program can set the last of these times, so a file whose bytes were replaced and whose other time
was set back is read again. A file that was changed just before it is read is not remembered: it
could change again within the same tick of the file system's clock. Bytes that are written through a
shared mapping may leave both times as they are for some seconds; nothing of Escala writes so.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from escala.core.files import atomic, sha256_file

FOLDER = "digests"
#: Smaller files are read each time, which is as fast as to look up their digest.
LEAST_BYTES = 2**20
#: No file system of Linux has a clock with longer ticks (FAT: 2 s).
TICK_SECONDS = 3.0


def sha256(path: Path, store: Path | None) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal, computed or remembered.

    Parameters
    ----------
    store : the folder whose `digests` are used. None, or one that cannot be used: the file is read.

    Raises
    ------
    OSError : the file cannot be read.
    """
    before = path.stat()
    if store is None or before.st_size < LEAST_BYTES:
        return sha256_file(path)
    kept = _kept(store, before)
    with suppress(OSError):
        if re.fullmatch("[0-9a-f]{64}", found := kept.read_text()):
            return found
    began = time.time()
    digest = sha256_file(path)
    changed = max(before.st_mtime, before.st_ctime)
    if changed + TICK_SECONDS < began and _kept(store, path.stat()) == kept:
        with suppress(OSError), atomic(kept, durable=False) as temporary:
            temporary.write_text(digest)
    return digest


def _kept(store: Path, found: os.stat_result) -> Path:
    """Return the file that holds the digest of a file with these times, size and place."""
    times = found.st_mtime_ns, found.st_ctime_ns
    identity = os.uname().nodename, found.st_dev, found.st_ino, found.st_size, *times
    name = hashlib.sha256(repr(identity).encode()).hexdigest()
    return store / FOLDER / name[:2] / name
