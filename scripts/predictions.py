"""Predict the times of an experiment's configurations from a calibration, and print them."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.cache import code
from escala.core.files import read_json, write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("predictions", type=Path, metavar="predictions.json")
    made = parser.add_argument_group("to make the file before")
    made.add_argument("--calibration", type=Path)
    made.add_argument(
        "--configurations",
        type=cli.json_or_file,
        metavar="JSON",
        help="the configurations, with their works, rows and exchanges",
    )
    made.add_argument("--datasets", nargs="+", type=Path, metavar="dataset.json")
    arguments = parser.parse_args()
    if arguments.calibration:
        _make(arguments)
        return

    from escala.analysis.cost_model.predictions import lines

    print("\n".join(lines(read_json(arguments.predictions)["configurations"])))


def _make(arguments: argparse.Namespace) -> None:
    def make() -> None:
        from escala.analysis.cost_model import predictions
        from escala.analysis.cost_model.calibration import read
        from escala.runtime.layout import with_layout

        # …/data/{dataset}/split{seed}/dataset.json
        train_rows = {
            path.parent.parent.name: read_json(path)["rows"]["train"] for path in arguments.datasets
        }
        planned = [*map(with_layout, arguments.configurations)]
        found = predictions.rows(read(arguments.calibration), planned, train_rows)
        machine = read_json(arguments.calibration)["machine"]
        write_json(arguments.predictions, {"machine": machine, "configurations": list(found)})

    cli.serve_or_make(
        "predictions",
        code=code.project(),
        inputs={
            "calibration": arguments.calibration,
            **{str(path): path for path in arguments.datasets},
        },
        parameters={"configurations": arguments.configurations},
        outputs={arguments.predictions.name: arguments.predictions},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
