"""The description of a user's files: they are digested where they are, and not copied."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from escala.cache import digests
from escala.cache.store import location
from escala.core.files import write_json

KIND = "files"
FORMAT = 1


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Describe the files of a dataset, and return the description that `dataset.json` holds.

    Parameters
    ----------
    name : of the dataset.
    preparation : as `escala.data.files.settings.preparation` gives it.
    seed : of the split. The program divides the rows, if at all.
    inputs : files and folders by name.
    output : folder that receives `dataset.json`.

    Raises
    ------
    OSError : a file cannot be read.
    """
    description = {
        "format": FORMAT,
        "kind": KIND,
        "dataset": name,
        "provenance": "files",
        "leaky": False,
        "split_seed": seed,
        "inputs": [],
        "targets": None,
        "rows": {"train": preparation["rows"], "test": None},
        "paths": {
            key: _identity(path, preparation["identify"]) for key, path in sorted(inputs.items())
        },
        "sha256": {},
    }
    write_json(output / "dataset.json", description)
    return description


def _identity(path: Path, by: str) -> dict[str, Any]:
    """Return the number of files, their bytes, and one digest of them and their names."""
    files = sorted(_files(path))
    told = hashlib.sha256()
    for file in files:
        inner = file.relative_to(path).as_posix()
        about = file.stat()
        content = digests.sha256(file, location()) if by == "content" else about.st_mtime_ns
        told.update(repr((inner, about.st_size, content)).encode())
    sizes = sum(file.stat().st_size for file in files)
    return {"files": len(files), "bytes": sizes, "identified_by": by, "sha256": told.hexdigest()}


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (inner for inner in path.rglob("*") if inner.is_file())
