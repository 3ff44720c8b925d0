"""Tabulate every run for the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from escala.report.findings.words import Tables
from escala.report.tables.views import only_whole_runs


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
