"""Classify the items of a user's file with the model of a run."""

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
        query=Path,
        run=Path,
        familiarity=[Path],  # Of the split that the run was trained on, if its kind has one.
        false_alarms=float,  # Fraction of held-out rows that may be flagged.
        errors=[Path],  # The run's errors by length, if its kind has them.
        error_limit=float,  # Fraction of wrong test pieces up to which a length is enough.
        output=Path,
    )
    kind = KINDS[given.kind]
    files = {"query": given.query}
    for name in ("familiarity", "errors"):
        if paths := getattr(given, name):
            [files[name]] = paths
    limits = {"false_alarms": given.false_alarms, "error_limit": given.error_limit}

    def make() -> None:
        from escala.predict.classify import predict
        from escala.predict.lengths import judge, read

        by_length = judge(read(files["errors"]), given.error_limit) if given.errors else None
        familiarity, output = files.get("familiarity"), given.output
        predict(kind, given.query, given.run, familiarity, given.false_alarms, output, by_length)

    model = {name: given.run / name for name in FILES if (given.run / name).exists()}
    cli.serve_or_make(
        "predict",
        code=code(kind, given.workload),
        inputs=model | files,
        parameters=limits,
        outputs={"table": given.output},
        make=make,
    )
    from escala.predict.lengths import read
    from escala.predict.summary import summary

    measured = read(files["errors"]) if given.errors else []
    print(summary(given.output, measured, given.error_limit))


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
