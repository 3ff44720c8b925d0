"""Print the predicted times of an experiment's configurations."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.core.files import read_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("predictions", type=Path, metavar="predictions.json")
    arguments = parser.parse_args()

    from escala.analysis.cost_model.predictions import assumptions, line

    rows = read_json(arguments.predictions)["configurations"]
    print(*map(line, rows), *filter(None, [assumptions(rows)]), sep="\n")


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
