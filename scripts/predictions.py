"""Predict the times of an experiment's configurations from a calibration."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.core.files import read_json, write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calibration", required=True, type=Path)
    parser.add_argument(
        "--configurations",
        required=True,
        type=cli.json_or_file,
        metavar="JSON",
        help="the configurations, with their works, rows and exchanges",
    )
    parser.add_argument("--datasets", required=True, nargs="+", type=Path, metavar="dataset.json")
    parser.add_argument("--output", required=True, type=Path, help="the predictions.json to write")
    arguments = parser.parse_args()

    def make() -> None:
        from escala.analysis.cost_model import predictions
        from escala.analysis.cost_model.calibration import read

        # …/data/{dataset}/split{seed}/dataset.json
        train_rows = {
            path.parent.parent.name: read_json(path)["rows"]["train"] for path in arguments.datasets
        }
        found = predictions.rows(read(arguments.calibration), arguments.configurations, train_rows)
        machine = read_json(arguments.calibration)["machine"]
        write_json(arguments.output, predictions.as_json(list(found), machine))

    cli.serve_or_make(
        "predictions",
        code="scripts.predictions",
        inputs={
            "calibration": arguments.calibration,
            **{str(path): path for path in arguments.datasets},
        },
        parameters={"configurations": arguments.configurations},
        outputs={arguments.output.name: arguments.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
