"""Classify the items of a user's file with the model of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.data import KINDS
from escala.predict import predicting
from escala.workloads import WORKLOADS
from escala.workloads.models import FILES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True, choices=sorted(KINDS), help="of the data")
    parser.add_argument("--workload", required=True, choices=sorted(WORKLOADS), help="of the run")
    parser.add_argument("--query", required=True, type=Path, help="file to classify")
    parser.add_argument("--run", required=True, type=Path, help="folder of a run that ended ok")
    parser.add_argument(
        "--familiarity",
        nargs="*",
        default=[],
        type=Path,
        help="familiarity.npz of the split that it was trained on",
    )
    parser.add_argument(
        "--false-alarms",
        default=0.05,
        type=float,
        metavar="SHARE",
        help="share of held-out rows that may be flagged as unlike anything seen (default: 0.05)",
    )
    parser.add_argument("--output", required=True, type=Path, help="TSV to write")
    arguments = parser.parse_args()
    kind, familiarity = KINDS[arguments.kind], next(iter(arguments.familiarity), None)

    def make() -> None:
        from escala.predict.classify import predict
        from escala.predict.scores import report

        table = predict(
            kind,
            arguments.query,
            arguments.run,
            familiarity,
            arguments.false_alarms,
            arguments.output,
        )
        predicted = table.filter(regex="^predicted")
        classes = predicted.dtypes.eq(object).all()
        print((predicted.value_counts() if classes else predicted.describe()).to_string())
        if "class" in table:
            print(report(table))
        flagged = ""
        if familiarity:
            flagged = f", {int(table['unlike_anything_seen'].sum())} of them unlike anything seen"
        print(f"{len(table)} records{flagged}: {arguments.output}")

    model = {name: arguments.run / name for name in FILES if (arguments.run / name).exists()}
    cli.serve_or_make(
        "predict",
        code="scripts.predict",
        chosen=predicting(kind, arguments.workload),
        inputs=model
        | {"query": arguments.query}
        | ({"familiarity": familiarity} if familiarity else {}),
        parameters={"false_alarms": arguments.false_alarms},
        outputs={"table": arguments.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
