"""Draw the ratio of each change of a ladder, as one waterfall chart for each ladder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from escala.report.figures import common
from escala.report.figures.common import PANEL_TITLE, describe_data, wrap
from escala.report.findings.words import Names, name_in_words
from escala.report.tables.series import DIRECT, PRODUCT, RUNG
from escala.report.tables.views import unit

CATEGORY = "Time"
CAPTION = (
    "Whole time of an epoch after each change on the way from one configuration to another. Each "
    "change is measured in separate paired runs, and its bar begins at the end of the bar before. "
    "Whiskers are the interval of the change's ratio, or the range for fewer than five paired "
    "runs. In brackets: the change in seconds per epoch. The bars below are all changes "
    "multiplied, and the two ends measured directly. If both bars agree, the changes explain the "
    "whole difference. The numbers are in the table ``ladder``."
)
NEEDS = "ladders"
WHAT = "What each change is worth"
_LESS, _MORE, _END = common.MUTED[6], common.MUTED[0], common.GREY
_NAMES = {PRODUCT: "all changes multiplied", DIRECT: "the ends, measured directly"}


def draw(tables: common.Tables) -> Figure:
    """Draw every ratio with its interval; a bar begins at the end of the bar before."""
    table = tables["ladder"]
    missing = [
        f"Unavailable: {row.ladder}, {_NAMES.get(row.part, row.change)}: {row.reason}."
        for row in table[table["kind"] == "unavailable"].itertuples()
    ]
    if len(missing) == len(table):
        return common.empty(
            WHAT, describe_data(table), " ".join(["Nothing was measured.", *missing])
        )
    ladders = list(table.groupby(["dataset", "workload", "ladder"], sort=False))
    names = Names(name_in_words(tables))
    bars = [list(_bars(rows, names)) for _, rows in ladders]
    named = ((bar.name, bar.value) for ladder_bars in bars for bar in ladder_bars)
    row_height = common.height_with_names(named)
    heights = [row_height * len(ladder_bars) for ladder_bars in bars]
    figure = common.new(common.NARROW, sum(heights) + 0.9 * len(ladders))
    grid = figure.subplots(len(ladders), 1, squeeze=False, height_ratios=heights)
    several = [key for key in ("dataset", "workload") if table[key].nunique() > 1]
    width = 0.9 * common.NARROW
    for axes, (_, rows), ladder_bars in zip(grid.flat, ladders, bars, strict=True):
        first = rows.iloc[0]
        farthest = 1.0
        for place, bar in enumerate(ladder_bars):
            if pd.isna(bar.end):
                continue
            axes.barh(place, bar.end - bar.begin, 0.2 / row_height, bar.begin, color=bar.colour)
            if not pd.isna(bar.interval[0]):
                mark = {"color": "black", "capsize": 3, "linewidth": 1}
                lengths = common.error_bars(bar.end, *bar.interval)
                axes.errorbar(bar.end, place, xerr=lengths, **mark)
            ends = (bar.begin, bar.end, bar.interval[1])
            farthest = max(farthest, *(end for end in ends if not pd.isna(end)))
        texts = [(bar.name, bar.value) for bar in ladder_bars]
        common.name_rows(axes, texts, row_height, farthest)
        before = names(first["before"]).replace("`", "")
        what = f"time per {unit(tables, first['workload'])} (1: {before})"
        axes.set_xlabel(wrap(what, width, PANEL_TITLE))
        heading = ", ".join([*(first[key] for key in several), first["ladder"]])
        axes.set_title(wrap(heading, width, PANEL_TITLE), loc="left")
    common.finish(figure, [WHAT, describe_data(table)], missing)
    return figure


class _Bar(NamedTuple):
    """A bar of a ladder from `begin` to `end`, with its texts; NaN if its ratio is unknown."""

    name: str
    value: str
    colour: str
    begin: float
    end: float
    interval: tuple[float, float]


def _bars(rows: pd.DataFrame, names: Names) -> Iterator[_Bar]:
    """Yield the bars of a ladder: the start, each change, the product of changes, the ends."""
    ends = rows["ratio"].where(rows["part"] == RUNG).fillna(1.0).cumprod()
    starts = ends.shift(fill_value=1.0)
    before = names(rows["before"].iloc[0]).replace("`", "")
    yield _Bar(before, "1", _END, 0.0, 1.0, (math.nan, math.nan))
    for row, start in zip(rows.itertuples(), starts, strict=True):
        is_rung = row.part == RUNG
        begin, scale = (start, start) if is_rung else (0.0, 1.0)
        end, low, high = (scale * ratio for ratio in (row.ratio, row.ratio_low, row.ratio_high))
        colour = _END
        if is_rung:
            colour = _LESS if row.ratio < 1 else _MORE
        seconds = "" if pd.isna(row.cost_seconds) else f" ({-row.cost_seconds:+.2f} s)"
        yield _Bar(
            row.change if is_rung else _NAMES[row.part],
            "unavailable" if pd.isna(row.ratio) else f"{row.ratio:.2f}{seconds}",
            colour,
            begin,
            end,
            (low, high),
        )
