"""Draw time and speed-up of a scaling study over the size of the layouts."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.experiment.scaling import WEAK
from escala.report.figures import common
from escala.report.figures.looks import described
from escala.report.figures.text import PANEL_TITLE, wrap

CATEGORY = "Time"
CAPTION = (
    "Time of an epoch and speed-up over the baseline by the number of nodes, or of processes on "
    "one node, on logarithmic axes. The baseline is the smallest layout that was measured. Sizes "
    "whose processes share cores are left out. With weak scaling an epoch grows with the "
    "processes, and the speed-up is that of its rows per second. Dashed: ideal scaling from the "
    "baseline. Points are medians of times, and of speed-ups estimates over matches of runs of one "
    "session and repeat. Bars are 95 % intervals from six runs or matches on, and the range for "
    "fewer. Hollow: times that a cost model predicts, with their 90 % intervals, where there are "
    "predictions."
)
NEEDS = "scaling"
WHAT = "Scaling"
#: What the lines of a panel differ in.
_SERIES = ["study_strategy", "variant", "study_network"]


def draw(tables: common.Tables) -> Figure:
    """Draw a row of two panels for each dataset and workload: time, and speed-up."""
    table = tables["scaling"]
    alone = ~table["shares_cores"].fillna(False).astype(bool)
    measured = table[(table["kind"] != "unavailable") & alone]
    if measured.empty:
        why = " ".join(["No layout of the study was measured.", *common.gaps(tables["runs"])])
        return common.empty(WHAT, described(tables["runs"]), why)
    parts = common.panels(measured)
    figure = common.new(7.2, 3.1 * len(parts))
    grid = figure.subplots(len(parts), 2, squeeze=False)
    varying = [key for key in _SERIES if measured[key].nunique() > 1] or _SERIES[:1]
    for (left, right), ((_, workload), frame) in zip(grid, parts, strict=True):
        over = "nodes" if frame["nodes"].max() > 1 else "ranks"
        groups = list(frame.groupby(_SERIES, sort=False))
        names = [" ".join(map(str, rows[varying].iloc[0])) for _, rows in groups]
        colours, shapes = common.palette(names), common.markers(names)
        for name, (_, rows) in zip(names, groups, strict=True):
            rows = rows.sort_values(["ranks", "nodes"])
            look = {"color": colours[name], "marker": shapes[name], "label": name}
            _times(left, rows, over, look)
            _speedups(right, rows, over, look)
        for axes in (left, right):
            _finish(axes, frame, over)
        title = common.panel_title(workload, frame, several=len(parts) > 1)
        left.set_title(wrap(title, 3.0, PANEL_TITLE))
        left.set_ylabel("training time\nof an epoch (s)")
        right.set_ylabel("speed-up over\nthe baseline")
    common.legend_of(figure, grid.ravel(), "series")
    kind = f"{measured['scaling'].iloc[0].capitalize()} scaling"
    common.finish(figure, [kind, described(measured)], common.gaps(tables["runs"]))
    return figure


def _times(axes: Axes, rows: pd.DataFrame, over: str, look: dict) -> None:
    """Draw the times of a series, the ideal ones, and those that are predicted."""
    _points(axes, rows, over, "seconds_per_epoch", "seconds_per_epoch_{}", look)
    first = rows.iloc[0]
    strong = first["scaling"] != WEAK
    ideal = first["seconds_per_epoch"] * (first["ranks"] / rows["ranks"] if strong else 1)
    axes.plot(rows[over], np.broadcast_to(ideal, len(rows)), "--", color="0.4", linewidth=1)
    predicted = rows.dropna(subset=["predicted_seconds_per_epoch"])
    if len(predicted):
        hollow = look | {"markerfacecolor": "white", "label": "predicted", "linestyle": ":"}
        column = "predicted_{}_seconds_per_epoch"
        _points(axes, predicted, over, "predicted_seconds_per_epoch", column, hollow)


def _speedups(axes: Axes, rows: pd.DataFrame, over: str, look: dict) -> None:
    """Draw the speed-ups of a series, and the ideal ones."""
    known = rows.dropna(subset=["speedup"])
    _points(axes, known, over, "speedup", "speedup_{}", look)
    ideal = rows["cores"] / rows["cores"].iloc[0]
    axes.plot(rows[over], ideal.astype(float), "--", color="0.4", linewidth=1)


def _points(axes: Axes, rows: pd.DataFrame, over: str, value: str, ends: str, look: dict) -> None:
    values = rows[value].astype(float)
    low, high = (rows[ends.format(end)].astype(float).fillna(values) for end in ("low", "high"))
    bars = np.clip([values - low, high - values], 0, None)
    axes.errorbar(rows[over], values, yerr=bars, capsize=3, linewidth=1.5, markersize=6, **look)


def _finish(axes: Axes, frame: pd.DataFrame, over: str) -> None:
    """Set logarithmic axes whose ticks are the sizes that were measured."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    layouts = frame.sort_values("ranks").groupby(over)["layout"].unique().map(" ".join)
    axes.set_xticks(list(layouts.index), [f"{size}\n{names}" for size, names in layouts.items()])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"{'nodes' if over == 'nodes' else 'processes'}, and the layouts measured")
