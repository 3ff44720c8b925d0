"""Train and measure one run, and write its run.json whatever becomes of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from escala import cli
from escala.measure.run import measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--request",
        required=True,
        type=json.loads,
        metavar="JSON",
        help="the run's identity, training settings, knobs and seeds",
    )
    parser.add_argument("--data", required=True, type=Path, help="folder of the split")
    parser.add_argument("--time-limit", required=True, type=float, metavar="MINUTES")
    parser.add_argument("--output", required=True, type=Path, help="the run.json to write")
    arguments = parser.parse_args()
    outcome = measure(
        arguments.request, arguments.data, arguments.output, arguments.time_limit * 60
    )
    print(f"{arguments.output}: {outcome.status}" + (f" ({outcome.reason})" * bool(outcome.reason)))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
