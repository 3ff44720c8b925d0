"""Draw the ratio of each change of a ladder, as one waterfall chart for each ladder."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.report.figures.common import (
    MUTED,
    NOTE,
    PANEL_TITLE,
    Tables,
    empty,
    name_height,
    new,
    note,
    title,
    wrap,
    wrapped_names,
)
from escala.report.figures.looks import described
from escala.report.tables.ladder import DIRECT, PRODUCT, RUNG
from escala.report.tables.views import unit

CATEGORY = "Time"
NEEDS = "ladders"
WHAT = "What each change is worth"
_LESS, _MORE, _ALL = "takes less time", "takes more time", "an end"
_COLOURS = {_LESS: MUTED[6], _MORE: MUTED[0], _ALL: "0.6"}
_NAMES = {PRODUCT: "all changes multiplied", DIRECT: "the ends, measured directly"}


def draw(tables: Tables) -> Figure:
    """Draw every ratio with its 95 % interval; a rung's bar begins at the end of the one before."""
    table = tables["ladder"]
    known = table[table["kind"] != "unavailable"]
    if known.empty:
        return empty(WHAT, described(table), " ".join(["Nothing was measured.", *_gaps(table)]))
    ladders = list(table.groupby(["dataset", "workload", "ladder"], sort=False))
    names = wrapped_names([*table["change"].dropna(), *table["before"]])
    row = max(0.3, name_height(names) + 0.1)
    heights = [row * (len(rows) + 1) + 0.9 for _, rows in ladders]
    figure = new(9, sum(heights))
    grid = figure.subplots(len(ladders), 1, squeeze=False, height_ratios=heights)
    several = [key for key in ("dataset", "workload") if table[key].nunique() > 1]
    for axes, (_, rows) in zip(grid.flat, ladders, strict=True):
        first = rows.iloc[0]
        _waterfall(axes, rows, f"time per {unit(tables, first['workload'])}")
        heading = ", ".join([*(first[key] for key in several), first["ladder"]])
        axes.set_title(wrap(heading, 6, PANEL_TITLE), loc="left")
    title(figure, WHAT, table)
    note(figure, [_READING, *_gaps(table)])
    return figure


_READING = (
    "Time of an epoch with all that is in it. Each bar is a series of pairs of its own, drawn from "
    "where the one before ended; whiskers: 95 % interval of its ratio, the range for fewer "
    "than nine pairs. In brackets, what that is in seconds per epoch. If bars that were "
    "measured one by one lead to where the ends are, nothing is missing between them."
)


def _waterfall(axes: Axes, rows: pd.DataFrame, what: str) -> None:
    is_rung = rows["part"] == RUNG
    ends = rows["ratio"].where(is_rung).fillna(1.0).cumprod()
    starts = ends.shift(fill_value=1.0)
    axes.barh(0, 1.0, color=_COLOURS[_ALL], height=0.6)
    for at, (row, start) in enumerate(zip(rows.itertuples(), starts, strict=True), start=1):
        if pd.isna(row.ratio):
            continue
        begin, scale = (start, start) if row.part == RUNG else (0.0, 1.0)
        end = scale * row.ratio
        kind = _ALL if row.part != RUNG else _LESS if row.ratio < 1 else _MORE
        axes.barh(at, end - begin, left=begin, color=_COLOURS[kind], height=0.6)
        if not pd.isna(row.ratio_low):
            whiskers = [
                [scale * (row.ratio - row.ratio_low)],
                [scale * (row.ratio_high - row.ratio)],
            ]
            axes.errorbar(end, at, xerr=whiskers, color="black", capsize=3, linewidth=1)
        seconds = "" if pd.isna(row.cost_seconds) else f" ({-row.cost_seconds:+.2f} s)"
        furthest = max(begin, end, scale * row.ratio_high if not pd.isna(row.ratio_high) else 0)
        axes.annotate(
            f"{row.ratio:.2f}{seconds}",
            (furthest, at),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=NOTE,
        )
    labels = [row.change if row.part == RUNG else _NAMES[row.part] for row in rows.itertuples()]
    axes.set_yticks(range(len(rows) + 1), wrapped_names([rows["before"].iloc[0], *labels]))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * axes.get_xlim()[1])
    axes.set_xlabel(wrap(f"{what} (1: {rows['before'].iloc[0]})", 6, PANEL_TITLE))
    axes.grid(axis="y", visible=False)


def _gaps(table: pd.DataFrame) -> list[str]:
    missing = table[table["kind"] == "unavailable"]
    return [
        f"Unavailable: {row.ladder}, {_NAMES.get(row.part, row.change)}: {row.reason}."
        for row in missing.itertuples()
    ]
