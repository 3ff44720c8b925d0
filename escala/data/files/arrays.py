"""Describe a user's files by digests, without a copy."""

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
#: A line announces the reading of more bytes than this, because it takes seconds.
LARGE = 2**28


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Describe the files and folders of a dataset; only the program may divide the rows.

    `output` receives `dataset.json`, and the state of each path for `find_changes`.
    """
    where = f"datasets.{name}.paths"
    # A move of the files changes their states, and leaves the description as it is.
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

    The digest covers the names, sizes and contents of the files. With `by` "time" it covers their
    times of change in place of the contents.
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
