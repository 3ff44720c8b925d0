"""Split a dataset, balance its classes and write the arrays to train on and to test with."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from escala import cli
from escala.prepare.arrays import write_arrays


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
    parser.add_argument("--output", required=True, type=Path, help="folder for the arrays")
    arguments = parser.parse_args()
    description = write_arrays(
        arguments.name, arguments.preparation, arguments.seed, arguments.source, arguments.output
    )
    for name, counts in description["counts"].items():
        print(name, *(f"{key} {value}" for key, value in counts.items()))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
