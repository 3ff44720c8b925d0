"""Split a dataset, balance its classes and write the arrays to train on and to test with."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from escala import cli

SIDES = ("train", "test")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="the dataset's name")
    parser.add_argument(
        "--preparation",
        required=True,
        type=json.loads,
        metavar="JSON",
        help="the dataset's preparation",
    )
    parser.add_argument("--seed", required=True, type=int, help="seed of the split")
    parser.add_argument("--source", required=True, type=Path, help="folder with codes.npy")
    parser.add_argument(
        "--groups", type=Path, help="group of every genome, for a split that keeps groups whole"
    )
    parser.add_argument("--output", required=True, type=Path, help="folder for the arrays")
    arguments = parser.parse_args()
    files = [f"{side}{part}.npy" for side in SIDES for part in ("", "_labels", "_genomes")]
    outputs = {name: arguments.output / name for name in (*files, "dataset.json")}

    def make() -> None:
        from escala.data.genomes.arrays import write_arrays

        with cli.stage("arrays") as stage:
            description = write_arrays(
                arguments.name,
                arguments.preparation,
                arguments.seed,
                arguments.source,
                arguments.output,
                arguments.groups,
            )
            counts = description["counts"].values()
            stage.rows_in = sum(c["kept"] for c in counts)
            stage.rows_out = sum(c["balanced"] + c["test"] for c in counts)
            stage.files = list(outputs.values())
        for name, counts in description["counts"].items():
            print(name, *(f"{key} {value}" for key, value in counts.items()))
        for name in description["not_separable"]:
            print(f"{name} is of one group: not separable, trained on as a whole")

    inputs = {n: arguments.source / n for n in ("codes.npy", "records.tsv", "classes.csv")}
    cli.serve_or_make(
        "arrays",
        code="scripts.arrays",
        inputs=inputs | ({"groups": arguments.groups} if arguments.groups else {}),
        parameters={
            "name": arguments.name,
            "preparation": arguments.preparation,
            "seed": arguments.seed,
        },
        outputs=outputs,
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
