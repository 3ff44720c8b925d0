"""Show, check and prune the store of results.

The store is the folder that ESCALA_STORE names; the default is .escala/store in the working
directory. Workflows may use it at the same time.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tqdm import tqdm

from escala.cache import store
from escala.core.arguments import Parser, from_zero, subcommands
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.core.readable import with_noun

KEY_SHOWN = 12
EXAMPLES = """\
examples:
  escala store size                             what each step takes
  escala store list                             the entries, with their keys
  escala store verify                           read everything again
  escala store prune --older-than 90 --dry-run  what would be removed
"""


def run(arguments: argparse.Namespace) -> int | None:
    folder = store.location()
    if folder is None or not (folder / "lock").exists():
        raise InputError(
            store.LOCATION,
            str(folder or store.OFF),
            "is not a store",
            f"name the folder of one, or run a workflow that fills {store.DEFAULT}",
        )
    return arguments.command(folder, arguments)


def add(parser: Parser) -> None:
    command = subcommands(parser)
    command("size", _size, "list the size of each step's results")
    command("list", _list, "list the entries: key, step, stored, last used, size")
    show = command("show", _show, "show all that determined an entry, and its content")
    show.add_argument("key", help="the first letters of its key, as shown by `list`")
    verify = command(
        "verify", _verify, "read everything again; list damaged files, and fail if there are any"
    )
    verify.add_argument("--remove", action="store_true", help="remove damaged files")
    prune = command(
        "prune",
        _prune,
        "remove files of killed processes, and the entries that the options name. A removed "
        "result is made again when it is needed. A measurement is measured again.",
    )
    prune.add_argument(
        "--older-than",
        type=from_zero,
        metavar="DAYS",
        help="remove entries not stored or served for this time",
    )
    prune.add_argument(
        "--larger-than",
        type=from_zero,
        metavar="GB",
        help="remove entries, least recently used first, down to this size (1 GB is 1e9 bytes)",
    )
    prune.add_argument(
        "--dry-run", action="store_true", help="list what would be removed; remove nothing"
    )


def _size(folder: Path, arguments: argparse.Namespace) -> None:
    sizes = store.size(folder)
    for step, (count, size) in sizes.steps.items():
        print(f"{step:16}{with_noun(count, 'entry', 'entries'):>14}{_megabytes(size):>14}")
    files = with_noun(sizes.files, "file")
    print(f"{folder}: {files}, {_megabytes(sizes.bytes)}, each file counted once")
    if sizes.unneeded_bytes:
        print(f"{_megabytes(sizes.unneeded_bytes)} of it belong to no entry: `prune` removes them")


def _list(folder: Path, arguments: argparse.Namespace) -> None:
    for entry in store.entries(folder):
        used = datetime.fromtimestamp(entry.used, UTC).isoformat(timespec="seconds")
        size = _megabytes(sum(entry.blobs.values()))
        print(f"{entry.key[:KEY_SHOWN]}  {entry.step:16}{entry.created}  {used}{size:>14}")


def _show(folder: Path, arguments: argparse.Namespace) -> None:
    entries = [entry for entry in store.entries(folder) if entry.key.startswith(arguments.key)]
    if not entries:
        raise InputError("key", arguments.key, "no entry has this key", "see the output of `list`")
    for entry in entries:
        print(json.dumps(read_json(entry.path) | {"key": entry.key}, indent=1))


def _verify(folder: Path, arguments: argparse.Namespace) -> int:
    progress = partial(tqdm, desc="verify", unit=" files", delay=2, leave=False)
    damaged = store.verify(folder, remove=arguments.remove, progress=progress)
    for path, reason in damaged.items():
        print(f"{path}: {reason}")
    remedy = " and removed" if arguments.remove else "; `verify --remove` removes them"
    if damaged:
        print(f"{with_noun(len(damaged), 'file is', 'files are')} damaged{remedy}")
    else:
        print(f"{folder}: nothing is damaged")
    return 1 if damaged else 0


def _prune(folder: Path, arguments: argparse.Namespace) -> None:
    limit = None if arguments.larger_than is None else int(arguments.larger_than * 1e9)
    gone = store.prune(
        folder,
        older_than_days=arguments.older_than,
        larger_than_bytes=limit,
        dry_run=arguments.dry_run,
    )
    removed = "would be removed" if arguments.dry_run else "removed"
    entries, files = with_noun(gone.entries, "entry", "entries"), with_noun(gone.files, "file")
    print(f"{entries}, {files}, {_megabytes(gone.bytes)} {removed}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3f} MB"
