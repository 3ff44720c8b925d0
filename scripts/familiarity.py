"""Learn the content of the training rows of a split, to flag unfamiliar items."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.data import KINDS
from escala.data.base import DESCRIPTION


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True, choices=sorted(KINDS), help="of the dataset")
    parser.add_argument("--split", required=True, type=Path, help="folder of the split")
    parser.add_argument("--output", required=True, type=Path, help="file to write")
    arguments = parser.parse_args()
    kind = KINDS[arguments.kind]

    def make() -> None:
        learned = kind.load("familiarity").learn(arguments.split, arguments.output)
        print(f"{arguments.output}: shares of {len(learned.held_out)} held-out rows")

    arrays = {name: arguments.split / name for name in (DESCRIPTION, *kind.files)}
    cli.serve_or_make(
        "familiarity",
        code="scripts.familiarity",
        chosen=[kind.module("familiarity")],
        inputs={name: path for name, path in arrays.items() if path.exists()},
        parameters={},
        outputs={"familiarity": arguments.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
