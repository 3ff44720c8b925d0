"""Acquire the data of all splits of a dataset, with a lock file of digests."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.data import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True, choices=sorted(KINDS), help="of the dataset")
    parser.add_argument(
        "--acquisition",
        required=True,
        type=cli.json_or_file,
        metavar="JSON",
        help="settings that determine the acquired data",
    )
    parser.add_argument(
        "--inputs",
        nargs="*",
        default=[],
        type=Path,
        metavar="FILE",
        help="files or folders that the source reads",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    kind = KINDS[arguments.kind]

    def make() -> None:
        from escala.core.files import atomic
        from escala.data.lock import write_lock

        with atomic(arguments.output) as temporary:
            temporary.mkdir()
            kind.load("source").acquire(arguments.acquisition, arguments.inputs, temporary)
            write_lock(temporary)

    cli.serve_or_make(
        "source",
        code="scripts.source",
        chosen=[kind.module("source")],
        inputs={f"{place} {path.name}": path for place, path in enumerate(arguments.inputs)},
        parameters={"kind": kind.name, "acquisition": arguments.acquisition},
        outputs={"source": arguments.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
