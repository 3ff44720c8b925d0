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
    parser.add_argument(
        "--errors",
        nargs="*",
        default=[],
        type=Path,
        help="length_errors.json of the run, if its kind has one",
    )
    parser.add_argument(
        "--error-limit",
        default=0.02,
        type=float,
        metavar="SHARE",
        help="share of wrong test pieces up to which a length is enough (default: 0.02)",
    )
    parser.add_argument("--output", required=True, type=Path, help="TSV to write")
    arguments = parser.parse_args()
    kind = KINDS[arguments.kind]
    familiarity, errors = (
        next(iter(files), None) for files in (arguments.familiarity, arguments.errors)
    )

    def make() -> None:
        from escala.predict.classify import predict
        from escala.predict.lengths import judge, read

        predict(
            kind,
            arguments.query,
            arguments.run,
            familiarity,
            arguments.false_alarms,
            arguments.output,
            judge(read(errors), arguments.error_limit) if errors else None,
        )

    model = {name: arguments.run / name for name in FILES if (arguments.run / name).exists()}
    cli.serve_or_make(
        "predict",
        code="scripts.predict",
        chosen=predicting(kind, arguments.workload),
        inputs=model
        | {"query": arguments.query}
        | ({"familiarity": familiarity} if familiarity else {})
        | ({"errors": errors} if errors else {}),
        parameters={
            "false_alarms": arguments.false_alarms,
            "error_limit": arguments.error_limit,
        },
        outputs={"table": arguments.output},
        make=make,
    )
    from escala.predict.lengths import read
    from escala.predict.summary import summary

    print(summary(arguments.output, read(errors) if errors else [], arguments.error_limit))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
