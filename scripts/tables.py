"""Gather the runs of an experiment into tables, as CSV files checked against their schemas."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.explain import tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", required=True, nargs="+", type=Path, metavar="run.json")
    parser.add_argument("--datasets", required=True, nargs="+", type=Path, metavar="dataset.json")
    parser.add_argument("--classes", required=True, nargs="+", type=Path, metavar="classes.csv")
    parser.add_argument("--output", required=True, type=Path, help="folder for the tables")
    arguments = parser.parse_args()
    frames = tables.tables(arguments.runs, arguments.datasets, arguments.classes)
    tables.write(frames, arguments.output)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
