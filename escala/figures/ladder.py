"""What each change on the way from one configuration to another is worth: a waterfall a ladder."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.explain.ladder import DIRECT, PRODUCT, RUNG
from escala.figures.common import Tables, described, empty, new, note, palette, title

WHAT = "What each change is worth"
_LESS, _MORE, _ALL = _KINDS = ("takes less time", "takes more time", "an end")
_NAMES = {PRODUCT: "all changes multiplied", DIRECT: "the ends, measured directly"}


def draw(tables: Tables) -> Figure:
    """Draw every ratio with its 95 % interval, those of rungs from where the one before ended."""
    table = tables["ladder"]
    known = table[table["kind"] != "unavailable"]
    if known.empty:
        return empty(WHAT, described(table), " ".join(["Nothing was measured.", *_gaps(table)]))
    ladders = list(table.groupby(["dataset", "workload", "ladder"], sort=False))
    heights = [len(rows) + 2.5 for _, rows in ladders]
    figure = new(11, 0.3 * sum(heights) + 1.4)
    grid = figure.subplots(len(ladders), 1, squeeze=False, height_ratios=heights)
    several = [key for key in ("dataset", "workload") if table[key].nunique() > 1]
    for axes, (_, rows) in zip(grid.flat, ladders, strict=True):
        _waterfall(axes, rows)
        first = rows.iloc[0]
        axes.set_title(", ".join([*(first[key] for key in several), first["ladder"]]), loc="left")
    title(figure, WHAT, table)
    note(figure, [_READING, *_gaps(table)])
    return figure


_READING = (
    "Time of an epoch with all that is in it. Each bar is a series of pairs of its own, drawn from "
    "where the one before ended; whiskers: 95 % interval of its ratio, the range for fewer "
    "than nine pairs. In brackets, what that is in seconds per epoch. If bars that were "
    "measured one by one lead to where the ends are, nothing is missing between them."
)


def _waterfall(axes: Axes, rows: pd.DataFrame) -> None:
    colours = palette(_KINDS)
    is_rung = rows["part"] == RUNG
    ends = rows["ratio"].where(is_rung).fillna(1.0).cumprod()
    starts = ends.shift(fill_value=1.0)
    axes.barh(0, 1.0, color=colours[_ALL], height=0.6)
    for at, (row, start) in enumerate(zip(rows.itertuples(), starts, strict=True), start=1):
        if pd.isna(row.ratio):
            continue
        begin, scale = (start, start) if row.part == RUNG else (0.0, 1.0)
        end = scale * row.ratio
        kind = _ALL if row.part != RUNG else _LESS if row.ratio < 1 else _MORE
        axes.barh(at, end - begin, left=begin, color=colours[kind], height=0.6)
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
            fontsize=8,
        )
    labels = [row.change if row.part == RUNG else _NAMES[row.part] for row in rows.itertuples()]
    axes.set_yticks(range(len(rows) + 1), [rows["before"].iloc[0], *labels])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * axes.get_xlim()[1])
    axes.set_xlabel(f"time per epoch (1: {rows['before'].iloc[0]})")
    axes.grid(axis="y", visible=False)


def _gaps(table: pd.DataFrame) -> list[str]:
    missing = table[table["kind"] == "unavailable"]
    return [
        f"Unavailable: {row.ladder}, {_NAMES.get(row.part, row.change)}: {row.reason}."
        for row in missing.itertuples()
    ]
