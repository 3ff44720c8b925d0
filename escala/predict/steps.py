"""Classify a user's data, each function by the rule of its name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from escala import cli
from escala import predict as predicting
from escala.data import KINDS


def _code(given: SimpleNamespace):
    return predicting.code(KINDS[given.kind], given.workload)


def _model(run: Path) -> cli.Files:
    from escala.workloads.models import FILES

    return {name: path for name in FILES if (path := run.with_name(name)).exists()}


def _of_lengths(given: SimpleNamespace, run: Path, split: Path, familiarity: Path) -> cli.Files:
    fragments = KINDS[given.kind].load("fragments").inputs(split.parent)
    return _model(run) | {"familiarity": familiarity} | fragments


@cli.step(_code, inputs=_of_lengths)
def length_errors(
    output: cli.Files, given: SimpleNamespace, run: Path, split: Path, familiarity: Path
) -> None:
    """Measure how often the model of a run is wrong about test pieces of each length."""
    from escala.predict.lengths import measure

    trained = run.parent, split.parent, familiarity
    for entry in measure(KINDS[given.kind], *trained, given.false_alarms, output["errors"]):
        print(
            f"{entry.letters} letters: {entry.error:.1%} of {entry.familiar} familiar test "
            "pieces are wrong"
        )


def _print_summary(
    output: cli.Files, given: SimpleNamespace, errors: Path | None = None, **_: Path
) -> None:
    from escala.predict.lengths import read, summary

    print(summary(output["table"], read(errors) if errors else [], given.error_limit))


@cli.step(_code, inputs=lambda given, run, **files: _model(run) | files, after=_print_summary)
def predict(
    output: cli.Files,
    given: SimpleNamespace,
    query: Path,
    run: Path,
    familiarity: Path | None = None,
    errors: Path | None = None,
) -> None:
    """Classify the items of a user's file with the model of a run.

    Not every kind of data has what tells familiar rows, and errors by length.
    """
    from escala.predict.classify import predict
    from escala.predict.lengths import judge, read

    by_length = judge(read(errors), given.error_limit) if errors else None
    trained = run.parent, familiarity, given.false_alarms
    predict(KINDS[given.kind], query, *trained, output["table"], by_length)
