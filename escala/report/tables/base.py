"""Define the contract of a table, and helpers of several tables.

A table is a module of this package with the name of its schema in `schemas/tables/`, and a function
`rows(evidence)` that yields a dict for each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from escala.analysis.measurements import earlier, measurements, read_run
from escala.analysis.statistics import LEVEL, Interval, median_interval, ratio_interval
from escala.analysis.verdicts import stein_interval
from escala.core.files import read_json, read_yaml
from escala.experiment.references import DEFAULT_REFERENCES, Configuration, Reference
from escala.experiment.runs import AGAIN
from escala.record.comparable import CONFIGURATION, Measurement, Pairs

SCHEMAS = Path(__file__).resolve().parents[3] / "schemas" / "tables"
#: Parts of a run outside the training steps, in the order they happen.
PARTS = (
    "startup", "loading", "build", "first_step", "first_prediction", "broadcast", "checkpoint",
    "averaging", "evaluation", "save",
)  # fmt: skip
_PANDAS = {"string": "string", "integer": "Int64", "number": "float64", "boolean": "boolean"}


@dataclass(frozen=True)
class Evidence:
    """The files and settings that tables are built from.

    Attributes
    ----------
    run_files : run.json files of timing runs.
    dataset_files : dataset.json files of the splits.
    class_files : classes.csv files of their datasets.
    probe_files : run.json files of probe runs.
    paired_files : run.json files of second runs of references, and of the pairs of ladders.
    pairs : the `escala.experiment.Pair`s of ladders.
    references : the references of configurations, the main one first; see
        `escala.experiment.references`.
    probe_settings : the settings of each probe in the experiment, by its name.
    predictions_file : predictions.json of the cost model, or None.
    pilot_file : pairs.json of an experiment with a pilot, or None.
    history_files : the files of the history, which holds measurements of further sessions.
    """

    run_files: Sequence[str | Path] = ()
    dataset_files: Sequence[str | Path] = ()
    class_files: Sequence[str | Path] = ()
    probe_files: Sequence[str | Path] = ()
    paired_files: Sequence[str | Path] = ()
    pairs: Sequence[Mapping[str, Any]] = ()
    references: Sequence[Reference] = DEFAULT_REFERENCES
    probe_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    predictions_file: Path | None = None
    pilot_file: Path | None = None
    history_files: Sequence[Path] = ()

    @cached_property
    def found(self) -> list[Measurement]:
        """Every measurement of the timing runs, including older sessions."""
        return measurements(self.run_files)

    @cached_property
    def earlier(self) -> list[Measurement]:
        """The measurements of further sessions in the history."""
        return earlier(self.history_files, self.found)

    @cached_property
    def again(self) -> list[Measurement]:
        """Every measurement of the second runs of references, including older sessions."""
        return [run for run in measurements(self.paired_files) if run["pair"] == AGAIN]

    @cached_property
    def pilot(self) -> dict | None:
        """The result of `escala.report.pilot.plan`, or None without a pilot."""
        return read_json(self.pilot_file) if self.pilot_file else None

    def of_probe(self, name: str) -> list[dict]:
        """Return the runs of a probe, each with the path of its run.json as `file`."""
        runs = (read_run(path) | {"file": str(path)} for path in self.probe_files)
        return [run for run in runs if run["instrument"] == name]

    @cached_property
    def evaluated(self) -> list[Measurement]:
        """The current runs after whole epochs that ended ok: those whose scores count."""
        return [
            run
            for run in self.found
            if run["current"] and run["status"] == "ok" and not is_cut(run)
        ]

    @property
    def scored(self) -> list[Measurement]:
        """The evaluated runs that are scored as classifications."""
        return [run for run in self.evaluated if "classes" in (run["evaluation"] or {})]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The table of runs."""
        from escala.report.tables import runs

        return frame("runs", runs.rows(self))


@cache
def schema(name: str) -> dict:
    """Return the JSON schema of a table's rows; its properties have the order of the columns."""
    return read_yaml(SCHEMAS / f"{name}.schema.yaml")


def frame(name: str, rows: Iterable[dict]) -> pd.DataFrame:
    """Return the rows of a table, with the columns and types of its schema."""
    rows = list(rows)
    # Each column at once: to convert a whole table takes several times as long.
    return pd.DataFrame(
        {key: pd.array([row.get(key) for row in rows], kind) for key, kind in dtypes(name).items()}
    )


def dtypes(name: str) -> dict[str, str]:
    """Return pandas' type of every column; all types can hold missing values."""
    return {
        key: _PANDAS[np.atleast_1d(column["type"])[0]]
        for key, column in schema(name)["properties"].items()
    }


def names_of(run: Measurement) -> dict:
    """Return the columns that name a measurement."""
    return {key: run[key] for key in (*CONFIGURATION, "repeat", "session")}


def data_of(run: Measurement) -> dict:
    """Return the columns on the data of a measurement."""
    return {key: run["data"][key] for key in ("provenance", "leaky", "split_seed")}


def is_cut(run: Measurement) -> bool:
    """Return whether an epoch was cut to some of its steps; epochs of older runs never were."""
    whole = run["training"].get("steps_per_epoch")
    return whole is not None and any(epoch["steps"] < whole for epoch in run["epochs"])


def epochs_to_target(run: Measurement) -> int | None:
    """Return after how many epochs a run reached its target accuracy; None if it did not."""
    target = run["training"].get("target_accuracy")
    if target is None:
        return None
    for number, epoch in enumerate(run["epochs"], start=1):
        accuracy = epoch["validation_accuracy"]
        if accuracy is not None and accuracy >= target:
            return number
    return None


def is_timed(run: Measurement) -> bool:
    """Return whether the time of a measurement counts: ok, not resumed, and comparable today."""
    resumed = run["training"].get("resumed_after", [])
    return run["status"] == "ok" and not resumed and run["comparable"]


def by_configuration(found: Iterable[Measurement]) -> dict[tuple, list[Measurement]]:
    """Return measurements by their configuration: the values of `CONFIGURATION`."""
    groups: dict[tuple, list[Measurement]] = {}
    for run in found:
        groups.setdefault(tuple(run[key] for key in CONFIGURATION), []).append(run)
    return groups


def interval_of_matches(
    ratios: np.ndarray, pairs: Pairs, evidence: Evidence, level: float = LEVEL
) -> Interval:
    """Return the ratio of some matches with its interval.

    It is `escala.analysis.statistics.ratio_interval`. If there is a pilot, with two of these
    matches or more, it is the geometric mean with the interval of Stein's second stage, because the
    number of matches depends on the variance of the pilot.

    Parameters
    ----------
    ratios : of `pairs`, one match of each repeat.
    """
    if by_stein(pairs, evidence):
        return stein_interval(ratios, _of_first_stage(pairs, evidence), level)
    return ratio_interval(ratios, level=level)


def by_stein(pairs: Pairs, evidence: Evidence) -> bool:
    """Return whether the interval of some matches is that of Stein's second stage."""
    return _of_first_stage(pairs, evidence) >= 2


def _of_first_stage(pairs: Pairs, evidence: Evidence) -> int:
    last = evidence.pilot["pilot"] if evidence.pilot else 0
    return sum(run["repeat"] <= last for run in pairs.runs)


def on_same_rows(
    runs: Iterable[Measurement], references: Iterable[Measurement]
) -> list[tuple[Measurement, Measurement]]:
    """Return pairs of a reference's run and a run, which had the same rows and seeds.

    Scores do not depend on time or machine, so the runs may be of different sessions.
    """
    by_rows = {_rows_and_seeds(run): run for run in references}
    return [(by_rows[_rows_and_seeds(run)], run) for run in runs if _rows_and_seeds(run) in by_rows]


def _rows_and_seeds(run: Measurement) -> tuple:
    """Return the properties that are equal if two runs had the same rows and seeds."""
    return run["repeat"], *sorted(run["data"]["sha256"].items())


def reference_columns(number: int, reference: Configuration) -> dict:
    """Return the columns that name a reference."""
    parts = reference._asdict().items()
    return {"reference": number} | {f"reference_{part}": name for part, name in parts}


def over(runs: pd.DataFrame, column: str) -> Interval:
    """Return the median of a column over some runs, with its interval."""
    return median_interval(runs[column].dropna())


def kind_of(interval: Interval) -> str:
    """Return whether there is an estimate."""
    return "unavailable" if interval.estimate is None else "measured"


def poorest(kinds: pd.Series) -> str:
    """Return the kind of a quantity made of several: the least certain kind."""
    known = set(kinds)
    return "unavailable" if not known else "estimated" if "estimated" in known else "measured"


def reasons(failed: pd.DataFrame) -> str:
    """Return the reasons of failures, each once, with its repeats."""
    by_reason = failed.groupby(["status", "reason"], sort=False, dropna=False)["repeat"]
    return "; ".join(
        f"rep {', '.join(map(str, repeats))}: {status}"
        + ("" if pd.isna(reason) else f" ({reason})")
        for (status, reason), repeats in by_reason
    )
