"""Fetch or simulate the genomes of a dataset: a FASTA file per class and a lock file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from escala import cli

#: Keys of a source that name a place or a person and do not affect the data.
PLACES = ("folder", "lock", "email")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=cli.json_or_file, required=True, metavar="JSON")
    parser.add_argument("--classes", nargs="+", required=True, metavar="CLASS")
    parser.add_argument(
        "--inputs",
        nargs="*",
        default=[],
        type=Path,
        metavar="FILE",
        help="files or folders that the source reads",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--lock", type=Path, required=True, metavar="FILE", help="TSV to write")
    parser.add_argument(
        "--partial",
        type=Path,
        metavar="DIR",
        help="folder for a download until it is complete",
    )
    arguments = parser.parse_args()
    source = arguments.source

    def make() -> None:
        import pandas as pd

        from escala.data.genomes.acquire import acquire

        acquire(source, arguments.classes, arguments.output, arguments.lock, arguments.partial)
        locked = pd.read_csv(arguments.lock, sep="\t", dtype={"class": str}, keep_default_na=False)
        for name, lengths in locked.groupby("class", sort=False)["length"]:
            print(f"{name}: {len(lengths)} records of {lengths.min()} to {lengths.max()} letters")

    cli.serve_or_make(
        "acquire",
        code="scripts.acquire",
        # By their paths: lists of two classes may have one name.
        inputs={f"{place} {path.name}": path for place, path in enumerate(arguments.inputs)},
        # The content of folders and lists is an input; their path and the user's address are not.
        parameters={
            "source": {key: value for key, value in source.items() if key not in PLACES},
            "classes": arguments.classes,
            # A mirror of NCBI is another source.
            "server": os.environ.get("ESCALA_EUTILS_URL") if source.get("type") == "ncbi" else None,
        },
        outputs={"sequences": arguments.output, "lock": arguments.lock},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
