"""Make the outputs of the rules on predictions. Each function has the name of its rule."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from escala import cli, engines
from escala.cache.code import Code, project
from escala.core.engines import DEFAULT
from escala.data import KINDS
from escala.workloads import WORKLOADS


def _code(given: SimpleNamespace) -> Code:
    """Return the code that decides a prediction; `escala.cli.step` describes `given`."""
    base, kind, workload = project(), KINDS[given.kind], WORKLOADS[given.workload]
    return Code(
        {**base.paths, "kind": kind.folder, "workload": workload.folder},
        {
            **base.versions,
            **kind.code().versions,
            **engines.versions(DEFAULT, workload.packages),
        },
    )


def _model_files(run: Path) -> cli.Files:
    """Return the files of the model alongside a `run.json`; none if the run kept no model."""
    from escala.workloads.models import FILES

    return {name: path for name in FILES if (path := run.with_name(name)).exists()}


def _inputs_of_lengths(
    given: SimpleNamespace, run: Path, split: Path, familiarity: Path
) -> cli.Files:
    fragments = KINDS[given.kind].load("fragments").inputs(split.parent)
    return _model_files(run) | {"familiarity": familiarity} | fragments


@cli.step(_code, inputs=_inputs_of_lengths)
def length_errors(
    output: cli.Files, given: SimpleNamespace, run: Path, split: Path, familiarity: Path
) -> None:
    """Measure how often the model of a run is wrong about test pieces of each length."""
    from escala.predict.classify import measure

    measured = measure(
        KINDS[given.kind],
        run.parent,
        split.parent,
        familiarity,
        given.false_alarms,
        output["errors"],
    )
    for at_length in measured:
        print(
            f"{at_length.letters} letters: {at_length.error:.1%} of {at_length.familiar} familiar "
            "test pieces are wrong"
        )


def _print_summary(
    output: cli.Files, given: SimpleNamespace, errors: Path | None = None, **_: Path
) -> None:
    from escala.predict.classify import read, summary

    print(summary(output["table"], read(errors) if errors else [], given.error_limit))


@cli.step(_code, inputs=lambda given, run, **files: _model_files(run) | files, after=_print_summary)
def predict(
    output: cli.Files,
    given: SimpleNamespace,
    query: Path,
    run: Path,
    familiarity: Path | None = None,
    errors: Path | None = None,
) -> None:
    """Classify the items of a user's file with the model of a run.

    `familiarity` and `errors` (by length) are None for a kind of data without the module of
    `familiarity` or `fragments`.
    """
    from escala.predict.classify import judge, predict, read

    by_length = judge(read(errors), given.error_limit) if errors else None
    predict(
        KINDS[given.kind],
        query,
        run.parent,
        familiarity,
        given.false_alarms,
        output["table"],
        by_length,
    )
