"""Fetch or simulate the genomes of a dataset: a FASTA file per class and a lock file."""

from __future__ import annotations

import os
from pathlib import Path

from escala import cli
from escala.data import ACQUIRE, KINDS

#: Keys of a source that name a place or a person and do not affect the data.
PLACES = ("folder", "lock", "email")


def main() -> None:
    given = cli.options(
        __doc__,
        source=cli.json_or_file,
        classes=[str],
        inputs=[Path],  # What the source reads.
        output=Path,
        lock=Path,
        partial=Path,  # The folder for a download until it is complete.
    )
    source = given.source

    def make() -> None:
        import pandas as pd

        from escala.data.genomes.acquire import acquire

        acquire(source, given.classes, given.output, given.lock, given.partial)
        locked = pd.read_csv(given.lock, sep="\t", dtype={"class": str}, keep_default_na=False)
        for name, lengths in locked.groupby("class", sort=False)["length"]:
            print(f"{name}: {len(lengths)} records of {lengths.min()} to {lengths.max()} letters")

    cli.serve_or_make(
        "acquire",
        code=KINDS["genomes"].code(ACQUIRE),
        # By their paths: lists of two classes may have one name.
        inputs={f"{place} {path.name}": path for place, path in enumerate(given.inputs)},
        # The content of folders and lists is an input; their path and the user's address are not.
        parameters={
            "source": {key: value for key, value in source.items() if key not in PLACES},
            "classes": given.classes,
            # A mirror of NCBI is another source.
            "server": os.environ.get("ESCALA_EUTILS_URL") if source.get("type") == "ncbi" else None,
        },
        outputs={"sequences": given.output, "lock": given.lock},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
