"""Describe a user's files, which are digested where they are, and not copied."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from escala.cache import entries
from escala.cache.store import location
from escala.core.console import progress
from escala.core.files import write_json
from escala.core.readable import size, with_noun
from escala.data.files import STATES, files, state, unreadable

KIND = "files"
FORMAT = 1
#: Bytes that take seconds to read, so that a line says so.
LARGE = 2**28


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Describe the files and folders of a dataset; the program divides the rows, if at all.

    `output` receives only `dataset.json`, and the state of each path for `find_changes`.
    """
    where = f"datasets.{name}.paths"
    # The description stays the same after a move of the files, and these states do not.
    states = {key: [str(path), state({key: path}, where)] for key, path in inputs.items()}
    write_json(output / STATES, states)
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
            key: _identity(path, preparation["identify"], f"{where}.{key}")
            for key, path in sorted(inputs.items())
        },
        "sha256": {},
    }
    write_json(output / "dataset.json", description)
    return description


def _identity(path: Path, by: str, where: str) -> dict[str, Any]:
    """Return the number of files, their bytes, and one digest of all.

    It is of their names and sizes, and of their contents, or, `by` time, of when they changed.
    """
    listed = files(path, where)
    total = sum(file.status.st_size for file in listed)
    say = progress(f"{where}: %d of {len(listed)} files read, %s of {size(total)}")
    if by == "content" and total >= LARGE:
        print(f"{where}: reads {with_noun(len(listed), 'file')}, {size(total)}", flush=True)
    digest, done = hashlib.sha256(), 0
    for number, file in enumerate(listed):
        say(number, size(done))
        content: str | int = file.status.st_mtime_ns
        if by == "content":
            try:
                content = entries.digest_file(Path(file.path), location())
            except OSError as error:
                raise unreadable(where, file.path, error) from error
        digest.update(repr((file.name, file.status.st_size, content)).encode())
        done += file.status.st_size
    return {"files": len(listed), "bytes": total, "identified_by": by, "sha256": digest.hexdigest()}
