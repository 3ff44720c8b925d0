"""Classify the records of a FASTA file with the model of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from escala import cli
from escala.workloads.models import FILES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fasta", required=True, type=Path, help="sequences to classify")
    parser.add_argument("--run", required=True, type=Path, help="folder of a run that ended ok")
    parser.add_argument(
        "--familiarity", required=True, type=Path, help="k-mers of the split it was trained on"
    )
    parser.add_argument(
        "--false-alarms",
        default=0.05,
        type=float,
        metavar="SHARE",
        help="share of held-out rows that may be flagged as unlike anything seen (0.05)",
    )
    parser.add_argument("--output", required=True, type=Path, help="TSV to write")
    arguments = parser.parse_args()

    def make() -> None:
        from escala.predict.classify import predict

        table = predict(
            arguments.fasta,
            arguments.run,
            arguments.familiarity,
            arguments.false_alarms,
            arguments.output,
        )
        flagged = int(table["unlike_anything_seen"].sum())
        print(table["predicted"].value_counts().to_string())
        print(f"{len(table)} records, {flagged} of them unlike anything seen: {arguments.output}")

    model = {name: arguments.run / name for name in FILES if (arguments.run / name).exists()}
    cli.serve_or_make(
        "predict",
        code="scripts.predict",
        inputs=model | {"fasta": arguments.fasta, "familiarity": arguments.familiarity},
        parameters={"false_alarms": arguments.false_alarms},
        outputs={"table": arguments.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
