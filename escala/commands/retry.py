"""Remove the failed runs of an experiment, so that the next call repeats them.

The next call also measures their references in the same repeats. Files that cannot be read, for
example after a power loss, are removed too. So are files in the format of another version.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from escala.core.arguments import Parser
from escala.core.errors import InputError
from escala.record.schema import read_result

EXAMPLES = """\
example:
  escala retry results/demo     then repeat the call that measured it, such as escala run
"""


def add(parser: Parser) -> None:
    parser.add_argument("experiment", type=Path, help="folder of its results, results/NAME")


def run(arguments: argparse.Namespace) -> None:
    folder = arguments.experiment
    if not (folder / "runs").is_dir():
        raise InputError(folder, str(folder), "holds no runs", "name a folder results/NAME")
    for path in sorted(folder.glob("runs/**/sessions/*.json")):
        status, fault = _read(path)
        if status is None:
            _remove(path, fault)
    paths = sorted(folder.glob("runs/**/run.json"))
    failed = {path: fault for path in paths if (fault := _read(path)[1])}
    for path, fault in failed.items():
        _remove(path, fault)
    print(
        f"{len(failed)} of {len(paths)} runs will be repeated by the next call, with "
        "the runs of the same repeats that they are compared with."
    )


def _read(path: Path) -> tuple[str | None, str]:
    """Return the status of a run, None of an unreadable file, and why the run must be repeated."""
    try:
        status = read_result(path)["status"]
    except InputError as error:
        return None, f"it cannot be read ({error.value}: {error.reason})"
    return status, "" if status == "ok" else status


def _remove(path: Path, reason: str) -> None:
    path.unlink()
    print(f"removed {path}: {reason}")
