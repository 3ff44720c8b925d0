"""Remove the failed runs of an experiment, so that the next call repeats them.

The next call also measures their references in the same repeats. Files that cannot be read, for
example after a power loss, are removed too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.core.arguments import raw_parser
from escala.core.errors import InputError
from escala.record.schema import read_result

EXAMPLES = """\
example:
  escala retry results/demo     then repeat the call that measured it, such as escala run
"""


def main() -> None:
    folder = parser().parse_args().experiment
    if not (folder / "runs").is_dir():
        raise InputError(folder, str(folder), "holds no runs", "name a folder results/NAME")
    for path in sorted(folder.glob("runs/**/sessions/*.json")):
        if _status(path) is None:
            _remove(path, "it cannot be read")
    paths = sorted(folder.glob("runs/**/run.json"))
    failed = {path: status for path in paths if (status := _status(path)) != "ok"}
    for path, status in failed.items():
        _remove(path, status or "it cannot be read")
    print(
        f"{len(failed)} of {len(paths)} runs will be repeated by the next call, with "
        "the runs of the same repeats that they are compared with."
    )


def parser() -> argparse.ArgumentParser:
    parser = raw_parser(__doc__, prog="escala retry", epilog=EXAMPLES)
    parser.add_argument("experiment", type=Path, help="folder of its results, results/NAME")
    return parser


def _status(path: Path) -> str | None:
    """Return the status of a run, or None if its file cannot be read."""
    try:
        return read_result(path)["status"]
    except InputError:
        return None


def _remove(path: Path, reason: str) -> None:
    path.unlink()
    print(f"removed {path}: {reason}")


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
