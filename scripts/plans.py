"""Write what advice needs to know of an experiment: its configurations, and how long they train."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.core.files import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--plans",
        required=True,
        type=cli.json_or_file,
        metavar="JSON",
        help="the experiment, as escala.experiment.plans describes it",
    )
    parser.add_argument("--datasets", required=True, nargs="+", type=Path, metavar="dataset.json")
    parser.add_argument("--output", required=True, type=Path, help="the plans.json to write")
    arguments = parser.parse_args()

    from escala.experiment.plans import with_rows

    write_json(arguments.output, with_rows(arguments.plans, arguments.datasets))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
