"""Tabulate every run for the page, and tell where its results come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from escala.core.readable import counted, name_first
from escala.report.findings.words import Tables, span
from escala.report.tables.views import only_whole_runs

#: More files and variables of a program are counted only.
_MOST_NAMES = 12


class Cell(NamedTuple):
    """A value as it is shown, and for a number as it is sorted."""

    text: str
    value: float | None = None


#: Columns of the table `runs`, with their headings, and the digits of numbers after the point.
COLUMNS = {
    "dataset": ("dataset", None),
    "workload": ("workload", None),
    "strategy": ("strategy", None),
    "layout": ("layout", None),
    "variant": ("variant", None),
    "network": ("network", None),
    "repeat": ("repeat", 0),
    "status": ("status", None),
    "train_seconds_per_epoch": ("training s per epoch", 3),
    "step_median_seconds": ("median step (s)", 4),
    "accuracy": ("accuracy", 3),
    "wall_seconds": ("whole run (s)", 1),
    "session": ("session", None),
}


def headings(tables: Tables) -> dict[str, str]:
    """Return the heading of each column."""
    found = {key: heading for key, (heading, _) in COLUMNS.items()}
    return found | {"train_seconds_per_epoch": "s per run"} if only_whole_runs(tables) else found


def rows(tables: Tables) -> Iterator[list[Cell]]:
    """Yield the cells of each measurement, in the order of `COLUMNS`."""
    for row in tables["runs"].to_dict("records"):
        yield [_cell(row[key], digits) for key, (_, digits) in COLUMNS.items()]


def _cell(value, digits: int | None) -> Cell:
    if pd.isna(value):
        return Cell("–")
    if digits is None:
        return Cell(str(value))
    return Cell(f"{value:.{digits}f}", float(value))


def provenance(tables: Tables, name: str) -> Iterator[tuple[str, str]]:
    """Yield names and values: experiment, runs, sessions, hosts, systems, splits and code."""
    runs = tables["runs"]
    yield "experiment", name
    yield "measurements", counted(len(runs), "measurement")
    yield "sessions", ", ".join(sorted(runs["session"].unique()))
    yield "started", " to ".join(sorted({runs["started"].min(), runs["started"].max()}))
    hosts = {host for names in runs["hosts"].dropna() for host in names.split(";") if host}
    yield "hosts", ", ".join(sorted(hosts)) or "unavailable"
    yield "kernel", ", ".join(sorted(runs["kernel"].dropna().unique()))
    for dataset, group in runs.groupby("dataset", sort=False):
        seeds = ", ".join(map(str, sorted(group["split_seed"].unique())))
        tested = group["test_rows"].dropna()
        rows = f", {span(tested)} test rows" if len(tested) else ""
        source = group["provenance"].iloc[0]
        yield f"dataset {dataset}", f"{source}, split seed {seeds}{rows}"
    for workload, group in runs.groupby("workload", sort=False):
        for command in group["command"].dropna().unique():
            yield f"program {workload}", command
        for what in ("files", "variables"):
            for names in group[f"program_{what}"].dropna().unique():
                yield f"{what} of {workload}", name_first(names.split(";"), _MOST_NAMES)
    yield "digests of the code", ", ".join(sorted(runs["source_sha256"].dropna().unique()))
