"""Measure how often the model of a run is wrong about test pieces of each length."""

from __future__ import annotations

from pathlib import Path

from escala import cli
from escala.data import KINDS
from escala.predict import code
from escala.workloads.models import FILES


def main() -> None:
    given = cli.options(
        __doc__,
        kind=str,
        workload=str,
        run=Path,
        split=Path,
        familiarity=Path,
        false_alarms=float,
        output=Path,
    )
    kind = KINDS[given.kind]

    def make() -> None:
        from escala.predict.lengths import measure

        trained = given.run, given.split, given.familiarity
        for entry in measure(kind, *trained, given.false_alarms, given.output):
            print(
                f"{entry.letters} letters: {entry.error:.1%} of {entry.familiar} familiar test "
                "pieces are wrong"
            )

    model = {name: given.run / name for name in FILES if (given.run / name).exists()}
    cli.serve_or_make(
        "length_errors",
        code=code(kind, given.workload),
        inputs=model
        | {"familiarity": given.familiarity}
        | kind.load("fragments").inputs(given.split),
        parameters={"false_alarms": given.false_alarms},
        outputs={"errors": given.output},
        make=make,
    )


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
