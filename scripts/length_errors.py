"""Measure how often the model of a run is wrong about test pieces of each length."""

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
    parser.add_argument("--run", required=True, type=Path, help="folder of a run that ended ok")
    parser.add_argument("--split", required=True, type=Path, help="folder of its arrays")
    parser.add_argument("--familiarity", required=True, type=Path, help="familiarity.npz of these")
    parser.add_argument("--false-alarms", required=True, type=float, metavar="SHARE")
    parser.add_argument("--output", required=True, type=Path, help="JSON to write")
    arguments = parser.parse_args()
    kind = KINDS[arguments.kind]

    def make() -> None:
        from escala.predict.lengths import measure

        measured = measure(
            kind,
            arguments.run,
            arguments.split,
            arguments.familiarity,
            arguments.false_alarms,
            arguments.output,
        )
        for entry in measured:
            print(
                f"{entry.letters} letters: {entry.error:.1%} of {entry.familiar} familiar test "
                "pieces are wrong"
            )

    model = {name: arguments.run / name for name in FILES if (arguments.run / name).exists()}
    cli.serve_or_make(
        "length_errors",
        code="scripts.length_errors",
        chosen=predicting(kind, arguments.workload, "fragments"),
        inputs=model
        | {"familiarity": arguments.familiarity}
        | kind.load("fragments").inputs(arguments.split),
        parameters={"false_alarms": arguments.false_alarms},
        outputs={"errors": arguments.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
