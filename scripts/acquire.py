"""Fetch or simulate the genomes of a dataset: a FASTA file per class and a lock file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd

import escala.cli
from escala.acquire import acquire


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=json.loads, required=True, metavar="JSON")
    parser.add_argument("--classes", nargs="+", required=True, metavar="CLASS")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--lock", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    acquire(arguments.source, arguments.classes, arguments.output, arguments.lock)
    locked = pd.read_csv(arguments.lock, sep="\t", dtype={"class": str}, keep_default_na=False)
    for name, lengths in locked.groupby("class", sort=False)["length"]:
        print(f"{name}: {len(lengths)} records of {lengths.min()} to {lengths.max()} letters")


if __name__ == "__main__":
    raise SystemExit(escala.cli.main(main))
