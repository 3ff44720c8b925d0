"""Print the ratios of an experiment in pairs, its step times, and the parts of a step."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", required=True, type=Path, help="folder of the tables")
    arguments = parser.parse_args()

    from escala.report import ratios, tables

    print("\n".join(ratios.lines(tables.read(arguments.tables))))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
