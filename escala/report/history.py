"""Make rows of a history from the measurements of experiments, and add them to the history."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from escala.analysis import comparable, history
from escala.core.engines import ENGINES
from escala.core.errors import InputError
from escala.experiment.runs import DEFAULT_REFERENCES, Configuration, references_for
from escala.record.schema import read_result
from escala.report.tables.runs import row as table_row

Row = dict[str, Any]
#: What the two runs of a ratio have in common, besides the repeat and the session.
_TASK = ("experiment", "dataset", "workload", "series")
#: A history has a program's versions of these packages, and one digest of all versions.
_FRAMEWORKS = {
    *(name for engine in ENGINES.values() for name in engine.distributions),
    "mpi4py", "lightning", "transformers", "accelerate", "scikit-learn", "xgboost",
    "lightgbm",
}  # fmt: skip


class SessionRows(NamedTuple):
    """The measurements in folders of experiments.

    Attributes
    ----------
    sessions : the rows of each session.
    unreadable : run.json files that are not whole, each with the error.
    """

    sessions: dict[str, list[Row]]
    unreadable: dict[Path, InputError]


class Added(NamedTuple):
    """What was added to a history.

    Attributes
    ----------
    files : the new files.
    runs, measurements : the number of new rows in the tables of these names.
    known : the number of runs that the history already held.
    unreadable : run.json files that are not whole, each with the error.
    """

    files: list[Path]
    runs: int
    measurements: int
    known: int
    unreadable: dict[Path, InputError]


def add(folder: Path, experiments: Iterable[Path], **keywords: Any) -> Added:
    """Add all runs of experiments to a history, as a file for each session.

    A run that the history already has is written again only if it has a new ratio, because its
    reference was measured in the meantime. Such a run still counts once.

    Parameters
    ----------
    folder : of the history.
    experiments : folders `results/NAME`.
    keywords : further arguments of `escala.analysis.history.read`.

    Raises
    ------
    InputError : a folder holds no runs.
    """
    session_rows = rows(
        run_file for experiment in experiments for run_file in run_files(experiment)
    )
    with history.read(folder, **keywords) as database:
        query = "SELECT run_sha256, ratio IS NOT NULL FROM runs"
        has_ratio = dict(history.query(database, query).rows)
    files, new = [], []
    for session, of_session in sorted(session_rows.sessions.items()):
        unknown = [row for row in of_session if row["run_sha256"] not in has_ratio]
        with_new_ratio = [
            row
            for row in of_session
            if row["ratio"] is not None and has_ratio.get(row["run_sha256"]) is False
        ]
        if unknown or with_new_ratio:
            files.append(history.write(folder, session, [*unknown, *with_new_ratio]))
        new += unknown
    runs = sum(map(len, session_rows.sessions.values()))
    measurements = sum(map(history.is_measurement, new))
    return Added(files, len(new), measurements, runs - len(new), session_rows.unreadable)


def run_files(experiment: Path) -> list[Path]:
    """Return all run.json files of an experiment, and those of its older sessions."""
    if not (experiment / "runs").is_dir():
        raise InputError(experiment, str(experiment), "holds no runs", "name a folder results/NAME")
    return [
        path
        for pattern in ("runs/**/run.json", "runs/**/sessions/*.json")
        for path in sorted(experiment.glob(pattern))
    ]


def rows(files: Iterable[Path]) -> SessionRows:
    """Return the rows of measurements, by their session, from run.json files.

    A measurement in two files, `run.json` and one of `sessions/`, has one row. A row has the
    ratio to one process of the same session, if one process was measured.
    """
    runs: dict[str, dict] = {}
    unreadable: dict[Path, InputError] = {}
    for path in files:
        try:
            run = read_result(path)
            text = history.document(run)
            digest = hashlib.sha256(text.encode()).hexdigest()
            runs.setdefault(digest, run | {history.DOCUMENT: text})
        except InputError as error:
            unreadable[path] = error
    sessions: dict[str, list[dict]] = defaultdict(list)
    for digest, run in runs.items():
        sessions[run["session"]].append(_row(run, digest))
    for of_session in sessions.values():
        with_runs = [(runs[row["run_sha256"]], row) for row in of_session]
        timed = [(run, row) for run, row in with_runs if history.is_measurement(row)]
        by_names = defaultdict(list)
        for run, row in timed:
            names = tuple(run[key] for key in (*_TASK, *Configuration._fields))
            by_names[names].append(run | {"seconds": row["train_seconds_per_epoch"]})
        for run, row in timed:
            task = tuple(run[key] for key in _TASK)
            configuration = Configuration(*(run[key] for key in Configuration._fields))
            for _, reference in references_for(configuration, DEFAULT_REFERENCES):
                matches = comparable.match_runs([run], by_names[(*task, *reference)])
                row["ratio_refused"] = next(iter(matches.refused), None)
                for reference_run in matches.references:
                    ratio = row["train_seconds_per_epoch"] / reference_run["seconds"]
                    row["ratio"] = ratio / comparable.work(run, reference_run)
    return SessionRows(dict(sessions), unreadable)


def _row(run: dict, digest: str) -> Row:
    """Return the row of a measurement in the history, without its ratio."""
    left_out = dict.fromkeys(history.FOLDER_COLUMNS)
    columns = table_row(run | left_out)
    return {
        **{key: value for key, value in columns.items() if key not in left_out},
        **{key: run[key] for key in ("experiment", "series", "instrument", history.DOCUMENT)},
        "run_sha256": digest,
        "series_sha256": _digest(comparable.series(run)),
        "machines": comparable.machines(run),
        "versions": _versions(run),
        "epoch_train_seconds": [epoch["train_seconds"] for epoch in run["epochs"]],
        "ratio": None,
        "ratio_refused": None,
    }


def _versions(run: dict) -> str:
    """Return the versions of a run as one text; texts are equal exactly if all versions are.

    A program has all packages of its interpreter. A digest stands for most packages.
    """
    versions = comparable.versions(run)
    if "program" in run:
        named = {name: versions[name] for name in ("program", "python") if name in versions}
        named |= {name: v for name, v in versions.items() if name.lower() in _FRAMEWORKS}
        versions = named | {"packages": _digest(versions)[:12]}
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def _digest(content: Any) -> str:
    """Return a digest that is the same for equal content; 1 and 1.0 are equal."""
    return hashlib.sha256(json.dumps(_plain(content), sort_keys=True).encode()).hexdigest()


def _plain(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _plain(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_plain(value) for value in content]
    return int(content) if isinstance(content, float) and content.is_integer() else content
