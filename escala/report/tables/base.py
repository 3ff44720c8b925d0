"""The evidence that tables are built from, and quantities of a run that several tables have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from escala.analysis.comparable import CONFIGURATION, Matched, Measurement, work
from escala.analysis.measurements import measurements, read_earlier, read_run
from escala.analysis.statistics import LEVEL, Interval, median_interval
from escala.analysis.tables import SCHEMAS, dtypes
from escala.experiment.runs import DEFAULT_REFERENCES, DUPLICATE, Configuration, Reference

#: Parts of a run outside the training steps, in the order they happen.
PARTS = (
    "startup", "loading", "build", "first_step", "first_prediction", "broadcast", "checkpoint",
    "averaging", "evaluation", "save",
)  # fmt: skip
#: Columns on the data: the type of their source, and whether the split leaks test rows.
ABOUT = ("provenance", "leaky")
#: Which times of two configurations are compared: of an epoch, or to the target accuracy.
EPOCH, TARGET = "epoch", "target"

#: Positions in a tuple of the values of `CONFIGURATION`.
STRATEGY, LAYOUT, NETWORK = map(CONFIGURATION.index, ("strategy", "layout", "network"))

Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Evidence:
    """The files and settings that tables are built from.

    Attributes
    ----------
    run_files : run.json files of timing runs.
    dataset_files : dataset.json files of the splits.
    probe_files : run.json files of probe runs.
    series_files : run.json files of duplicates of references, and of the rungs of ladders.
    rungs : the `escala.experiment.Rung`s of ladders.
    references : the references of configurations, the main one first; see
        `escala.experiment.runs`.
    scaling : the key `scaling` of the experiment, with all defaults; None without a study.
    probe_settings : the settings of each probe in the experiment, by its name.
    predictions_file : predictions.json of the cost model, or None.
    looks_file : looks.json of an experiment whose session decides when it stops, or None.
    level : of the intervals over repeats.
    history_files : the files of the history, which holds measurements of further sessions.
    """

    run_files: Sequence[str | Path] = ()
    dataset_files: Sequence[str | Path] = ()
    probe_files: Sequence[str | Path] = ()
    series_files: Sequence[str | Path] = ()
    rungs: Sequence[Mapping[str, Any]] = ()
    references: Sequence[Reference] = DEFAULT_REFERENCES
    scaling: Mapping[str, Any] | None = None
    probe_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    predictions_file: Path | None = None
    looks_file: Path | None = None
    level: float = LEVEL
    history_files: Sequence[Path] = ()

    @cached_property
    def runs(self) -> list[Measurement]:
        """Every measurement of the timing runs, including older sessions."""
        return measurements(self.run_files)

    @cached_property
    def history_runs(self) -> list[Measurement]:
        """The measurements of further sessions in the history."""
        return read_earlier(self.history_files, self.runs)

    @cached_property
    def series(self) -> list[Measurement]:
        """Every measurement of duplicates and of ladders, including older sessions."""
        return measurements(self.series_files)

    @property
    def duplicates(self) -> list[Measurement]:
        """Every measurement of the duplicates of references."""
        return [run for run in self.series if run["series"] == DUPLICATE]

    def probe_runs(self, name: str) -> list[dict]:
        """Return the runs of a probe, each with the path of its run.json as `file`."""
        return [run for run in map(read_run, self.probe_files) if run["instrument"] == name]

    @cached_property
    def evaluated(self) -> list[Measurement]:
        """The current runs that ended ok after whole epochs. Only their scores count."""
        return [
            run for run in self.runs
            if run["current"] and run["status"] == "ok" and not is_cut(run)
        ]  # fmt: skip

    @property
    def classified(self) -> list[Measurement]:
        """The evaluated runs that are scored as classifications."""
        return [run for run in self.evaluated if "classes" in (run["evaluation"] or {})]

    @property
    def scored_by_class(self) -> list[Measurement]:
        """The runs that keep scores of each class."""
        return [run for run in self.classified if "per_class" in run["evaluation"]]


def frame(name: str, rows: Iterable[dict]) -> pd.DataFrame:
    """Return the rows of a table, with the columns and types of its schema.

    Raises
    ------
    KeyError : a row has a key that the schema lacks.
    """
    rows = list(rows)
    if unknown := sorted(set().union(*rows) - dtypes(name).keys()):
        raise KeyError(f"{SCHEMAS / name}.schema.yaml has no column {', '.join(unknown)}")
    # Each column at once: to convert a whole table takes several times as long.
    return pd.DataFrame(
        {key: pd.array([row.get(key) for row in rows], kind) for key, kind in dtypes(name).items()}
    )


def name_columns(names: Iterable[str]) -> dict[str, str]:
    """Return the columns of `CONFIGURATION`, from their values."""
    return dict(zip(CONFIGURATION, names, strict=True))


def names_of(run: Measurement) -> dict:
    """Return the columns that name a measurement."""
    return {key: run[key] for key in (*CONFIGURATION, "repeat", "session")}


def data_of(run: Measurement, keys: Collection[str] = (*ABOUT, "split_seed")) -> dict:
    """Return the columns on the data of a measurement."""
    return {key: run["data"][key] for key in keys}


def reference_columns(number: int, reference: Configuration) -> dict:
    """Return the columns that name a reference."""
    parts = reference._asdict().items()
    return {"reference": number} | {f"reference_{part}": value for part, value in parts}


def by_configuration(runs: Iterable[Measurement]) -> dict[tuple, list[Measurement]]:
    """Return measurements by their configuration: the values of `CONFIGURATION`."""
    groups: dict[tuple, list[Measurement]] = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in CONFIGURATION), []).append(run)
    return groups


def is_cut(run: Measurement) -> bool:
    """Return whether an epoch was cut to some of its steps.

    The steps of a program are only known to be some of an epoch if a window of them was timed. The
    window may be longer than an epoch, but it is no whole run.
    """
    whole = run["training"]["steps_per_epoch"]
    if whole is None or run.get("program"):
        return whole is not None
    return any(epoch["steps"] < whole for epoch in run["epochs"])


def steps_of_epoch(run: Measurement) -> int | None:
    """Return the steps of a whole epoch; None if they are unknown."""
    first = next(iter(run["epochs"]), {"steps": None})
    return run["training"]["steps_per_epoch"] or first["steps"]


def mean_steps(run: Measurement) -> list[dict]:
    """Return what a mean step of each process of a program takes and uses; empty if unknown."""
    return (run.get("program") or {}).get("mean_steps") or []


def is_timed(run: Measurement) -> bool:
    """Return whether the time of a measurement counts: ok, not resumed, and comparable today."""
    return run["status"] == "ok" and not run["training"]["resumed_after"] and run["comparable"]


def select_timed(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the table `runs` whose times count, as `is_timed` decides."""
    is_ok = (runs["status"] == "ok") & (runs["resumptions"] == 0)
    return runs[is_ok & runs["comparable"]]


def kind(run: Measurement) -> str:
    """Return whether the time of a run is measured, estimated or unavailable.

    The time is estimated if an epoch was cut.
    """
    if run["status"] != "ok":
        return "unavailable"
    return "estimated" if is_cut(run) else "measured"


def seconds_per_epoch(run: Measurement) -> float:
    """Return the training seconds of an epoch, extrapolated if the epoch was cut to some steps."""
    spent, epochs = run["seconds"]["train"], run["epochs"]
    if not is_cut(run):
        return spent / len(epochs)
    return spent / sum(e["steps"] for e in epochs) * run["training"]["steps_per_epoch"]


def wall_per_epoch(run: Measurement) -> float | None:
    """Return the mean seconds of a whole epoch; None if epochs were cut, or the run failed."""
    walls = [epoch["epoch_wall_seconds"] for epoch in run["epochs"]]
    return float(np.mean(walls)) if kind(run) == "measured" else None


def epochs_to_target(run: Measurement) -> int | None:
    """Return after how many epochs a run reached its target accuracy; None if it did not."""
    target = run["training"]["target_accuracy"]
    reached = (
        number for number, epoch in enumerate(run["epochs"], start=1)
        if (epoch["validation_accuracy"] or 0) >= target
    )  # fmt: skip
    return None if target is None else next(reached, None)


def cores_of(run: Measurement) -> int:
    """Return the cores that a run requests, over all its ranks."""
    return run["ranks"]["asked"] * run["knobs"]["cores_per_process"]


def resources_of(run: Measurement) -> tuple[int, int, int]:
    """Return the nodes, the cores and the GPUs that a run uses; ranks may share cores."""
    available = sum(machine["cores_available"] for machine in run["ranks"]["machines"])
    cores = min(cores_of(run), available or cores_of(run))
    return run["layout"].nodes, cores, gpus_of(run)


def gpus_of(run: Measurement) -> int:
    """Return the number of GPUs of a run. A GPU that several processes share counts once.

    It is not known on which GPUs a program computes, so all GPUs that it may use count.
    """
    nodes, ranks = run["layout"].nodes, run["ranks"]
    if "program" in run:
        return sum(len(machine.get("gpus", ())) for machine in ranks["machines"])
    gpus_of_ranks = ranks.get("gpus", ())
    ranks_per_node = max(1, len(gpus_of_ranks) // nodes)
    used = set()
    for rank, gpus in enumerate(gpus_of_ranks):
        used |= {(rank // ranks_per_node, gpu) for gpu in gpus}
    return len(used)


def ratios(matches: Matched) -> np.ndarray:
    """Return the ratio of the seconds per epoch of each match, for the same work.

    With weak scaling, an epoch of several ranks has more rows than one of their reference.
    """
    times = np.array([*map(seconds_per_epoch, matches.runs)])
    reference_times = np.array([*map(seconds_per_epoch, matches.references)])
    return times / reference_times / works(matches)


def works(matches: Matched) -> np.ndarray:
    """Return for each match the work of an epoch of the run, divided by its reference's work."""
    return np.array([*map(work, matches.runs, matches.references)])


def median_of(column: str, runs: pd.DataFrame, level: float = LEVEL) -> Interval:
    """Return the median of a column over some rows of the table `runs`, with its interval."""
    return median_interval(runs[column].dropna(), level=level)


def least_certain(kinds: Iterable[str]) -> str:
    """Return the kind of a quantity that is computed from quantities of some kinds."""
    known = set(kinds)
    if not known:
        return "unavailable"
    return "estimated" if "estimated" in known else "measured"


def reasons(failed: pd.DataFrame) -> str:
    """Return each status and reason of failed runs once, with its repeats, as one text."""
    by_reason = failed.groupby(["status", "reason"], sort=False, dropna=False)["repeat"]
    return "; ".join(
        f"rep {', '.join(map(str, repeats))}: {status}"
        + ("" if pd.isna(reason) else f" ({reason})")
        for (status, reason), repeats in by_reason
    )


def failures(runs: Iterable[Measurement]) -> str:
    """Return the text of `reasons` for the current runs that did not end ok."""
    return reasons(pd.DataFrame([r for r in runs if r["current"] and r["status"] != "ok"]))
