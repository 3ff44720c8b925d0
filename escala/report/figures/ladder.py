"""Draw the ratio of each change of a ladder, as one waterfall chart for each ladder."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.report.figures import common
from escala.report.figures.looks import described
from escala.report.figures.text import NOTE, PANEL_TITLE, height_of, wrap, wrapped_names
from escala.report.tables.ladder import DIRECT, PRODUCT, RUNG
from escala.report.tables.views import unit

CATEGORY = "Time"
CAPTION = (
    "Time of an epoch, with all that is in it, after each change on the way from one "
    "configuration to another. Each bar is a series of matches of its own, drawn from where the "
    "one before ended; whiskers: 95 % interval of its ratio, the range for fewer than nine "
    "matches. In brackets, what that is in seconds per epoch. Below them stand all changes "
    "multiplied, and the two ends measured directly. If bars that were measured one by one lead to "
    "where the ends are, nothing is missing between them. The numbers are in the table ``ladder``."
)
NEEDS = "ladders"
WHAT = "What each change is worth"
_LESS, _MORE, _END = common.MUTED[6], common.MUTED[0], "0.6"
_NAMES = {PRODUCT: "all changes multiplied", DIRECT: "the ends, measured directly"}


def draw(tables: common.Tables) -> Figure:
    """Draw every ratio with its 95 % interval; a rung's bar begins at the end of the one before."""
    table = tables["ladder"]
    missing = [
        f"Unavailable: {row.ladder}, {_NAMES.get(row.part, row.change)}: {row.reason}."
        for row in table[table["kind"] == "unavailable"].itertuples()
    ]
    if len(missing) == len(table):
        return common.empty(WHAT, described(table), " ".join(["Nothing was measured.", *missing]))
    ladders = list(table.groupby(["dataset", "workload", "ladder"], sort=False))
    names = wrapped_names([*table["change"].dropna(), *table["before"]])
    row = max(0.3, height_of(names) + 0.1)
    heights = [row * (len(rows) + 1) + 0.9 for _, rows in ladders]
    figure = common.new(9, sum(heights))
    grid = figure.subplots(len(ladders), 1, squeeze=False, height_ratios=heights)
    several = [key for key in ("dataset", "workload") if table[key].nunique() > 1]
    for axes, (_, rows) in zip(grid.flat, ladders, strict=True):
        first = rows.iloc[0]
        _waterfall(axes, rows)
        what = f"time per {unit(tables, first['workload'])} (1: {first['before']})"
        axes.set_xlabel(wrap(what, 6, PANEL_TITLE))
        heading = ", ".join([*(first[key] for key in several), first["ladder"]])
        axes.set_title(wrap(heading, 6, PANEL_TITLE), loc="left")
    common.finish(figure, [WHAT, described(table)], missing)
    return figure


def _waterfall(axes: Axes, rows: pd.DataFrame) -> None:
    ends = rows["ratio"].where(rows["part"] == RUNG).fillna(1.0).cumprod()
    starts = ends.shift(fill_value=1.0)
    labels = [rows["before"].iloc[0]]
    axes.barh(0, 1.0, color=_END, height=0.6)
    for at, (row, start) in enumerate(zip(rows.itertuples(), starts, strict=True), start=1):
        is_rung = row.part == RUNG
        labels.append(row.change if is_rung else _NAMES[row.part])
        if pd.isna(row.ratio):
            continue
        begin, scale = (start, start) if is_rung else (0.0, 1.0)
        middle, low, high = (scale * end for end in (row.ratio, row.ratio_low, row.ratio_high))
        colour = _END if not is_rung else _LESS if row.ratio < 1 else _MORE
        axes.barh(at, middle - begin, left=begin, color=colour, height=0.6)
        if not pd.isna(low):
            bars = common.error_bars(middle, low, high)
            axes.errorbar(middle, at, xerr=bars, color="black", capsize=3, linewidth=1)
        seconds = "" if pd.isna(row.cost_seconds) else f" ({-row.cost_seconds:+.2f} s)"
        axes.annotate(
            f"{row.ratio:.2f}{seconds}", (max(begin, middle, 0 if pd.isna(high) else high), at),
            (6, 0), textcoords="offset points", va="center", fontsize=NOTE,
        )  # fmt: skip
    axes.set_yticks(range(len(labels)), wrapped_names(labels))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * axes.get_xlim()[1])
    axes.grid(axis="y", visible=False)
