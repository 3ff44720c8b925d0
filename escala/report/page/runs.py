"""Tabulate every run for the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from escala.report.findings.words import Tables
from escala.report.tables.views import only_whole_runs


class Column(NamedTuple):
    """A column of the table of runs.

    Attributes
    ----------
    heading : with the unit.
    key : the column in the table `runs`.
    digits : after the point, for numbers; None for text.
    """

    heading: str
    key: str
    digits: int | None = None


class Cell(NamedTuple):
    """A value as it is shown, and for a number as it is sorted."""

    text: str
    value: float | None = None


COLUMNS = (
    Column("dataset", "dataset"),
    Column("workload", "workload"),
    Column("strategy", "strategy"),
    Column("layout", "layout"),
    Column("variant", "variant"),
    Column("network", "network"),
    Column("repeat", "repeat", 0),
    Column("status", "status"),
    Column("training s per epoch", "train_seconds_per_epoch", 3),
    Column("median step (s)", "step_median_seconds", 4),
    Column("accuracy", "accuracy", 3),
    Column("whole run (s)", "wall_seconds", 1),
    Column("session", "session"),
)


def columns(tables: Tables) -> list[Column]:
    """Return `COLUMNS`, with the heading of times that are of whole runs."""
    if not only_whole_runs(tables):
        return list(COLUMNS)
    return [
        column._replace(heading="s per run") if column.key == "train_seconds_per_epoch" else column
        for column in COLUMNS
    ]


def rows(tables: Tables) -> Iterator[list[Cell]]:
    """Yield the cells of each measurement, in the order of `COLUMNS`."""
    for row in tables["runs"].to_dict("records"):
        yield [_cell(row[column.key], column.digits) for column in COLUMNS]


def _cell(value, digits: int | None) -> Cell:
    if pd.isna(value):
        return Cell("–")
    if digits is None:
        return Cell(str(value))
    return Cell(f"{value:.{digits}f}", float(value))
