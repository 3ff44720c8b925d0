"""Writing files whole or not at all, and their digests."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, renamed onto it if the block succeeds.

    The block may create a file or a directory there. If it raises, what it left is removed and
    `path` is as it was. The suffix is kept: libraries choose a format by it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    temporary = holder / path.name
    try:
        yield temporary
        if path.is_dir() and temporary.is_dir():
            # A folder is replaced by two renames: a kill leaves the old one, the new one, or none.
            path.replace(holder / "replaced")
        temporary.replace(path)
    except OSError as error:
        # A full disk is reported without the file that was being written.
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def sha256_file(path: str | Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_json(path: str | Path, content: Any) -> None:
    """Write `content` as indented JSON, atomically; NaN and infinity are refused."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(Path(path).read_text())
