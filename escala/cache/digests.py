"""Digests of large files, each computed again only if the file changed.

    {store}/digests/ab/abcd…  the SHA-256 of a file's bytes. The name is a hash of machine, device,
                              inode, size, mtime and ctime

No program can set the ctime, so a file that was changed and whose mtime was set back is still read
again. The digest of a file that changed just before it was read is not stored: the file could
change again within the same tick of the file system's clock. If a program writes through a shared
memory map, both times may change only some seconds later; nothing in Escala writes that way.
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
#: Smaller files are read each time, which is as fast as looking up their digest.
LEAST_BYTES = 2**20
#: No file system of Linux has a clock with longer ticks (FAT: 2 s).
TICK_SECONDS = 3.0


def sha256(path: Path, store: Path | None) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal, computed or looked up.

    Parameters
    ----------
    store : the folder whose `digests` are used. The file is read if this is None or not usable.

    Raises
    ------
    OSError : the file cannot be read.
    """
    before = path.stat()
    if store is None or before.st_size < LEAST_BYTES:
        return sha256_file(path)
    stored = _digest_file(store, before)
    with suppress(OSError):
        if re.fullmatch("[0-9a-f]{64}", found := stored.read_text(encoding="utf-8")):
            return found
    began = time.time()
    digest = sha256_file(path)
    changed = max(before.st_mtime, before.st_ctime)
    if changed + TICK_SECONDS < began and _digest_file(store, path.stat()) == stored:
        with suppress(OSError), atomic(stored, durable=False) as temporary:
            temporary.write_text(digest, encoding="utf-8")
    return digest


def _digest_file(store: Path, stat: os.stat_result) -> Path:
    """Return where the digest of a file with this place, size and times is stored."""
    times = stat.st_mtime_ns, stat.st_ctime_ns
    identity = os.uname().nodename, stat.st_dev, stat.st_ino, stat.st_size, *times
    name = hashlib.sha256(repr(identity).encode()).hexdigest()
    return store / FOLDER / name[:2] / name
