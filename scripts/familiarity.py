"""Learn which k-mers the training rows of a split hold, to flag what is unlike all of them."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", required=True, type=Path, help="folder of the split")
    parser.add_argument("--output", required=True, type=Path, help=".npz to write")
    arguments = parser.parse_args()

    def make() -> None:
        from escala.predict.familiarity import learn

        learned = learn(arguments.split, arguments.output)
        print(f"{arguments.output}: shares of {len(learned.held_out)} held-out rows")

    rows = ("train.npy", "train_genomes.npy", "test.npy")
    cli.serve_or_make(
        "familiarity",
        code="scripts.familiarity",
        inputs={name: arguments.split / name for name in rows},
        parameters={},
        outputs={"familiarity": arguments.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
