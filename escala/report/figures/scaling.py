"""Draw the training time, and the speed-up of a scaling study, over the size of the layouts."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from escala.analysis.comparable import CONFIGURATION
from escala.core.readable import number
from escala.experiment.runs import MAIN
from escala.experiment.scaling import WEAK
from escala.report.figures import common
from escala.report.figures.common import PANEL_TITLE, describe_data, wrap
from escala.report.tables.views import time_in_words, without_fits
from escala.runtime.layout import Layout

CATEGORY = "Time"
CAPTION = (
    "Time of an epoch by the number of nodes, or of processes on one node, on logarithmic axes. "
    "Each strategy, variant, network and number of processes a node has a line; the network's name "
    "shows its measured rate in Mbit/s. Points are medians. Bars are intervals, or the range "
    "for fewer than six runs. A cross is an estimate from runs that were cut short. A hollow point "
    "is for processes that shared cores. The grey line is the main reference on one node. A "
    "scaling study also has the speed-up over its baseline, the smallest measured layout, as an "
    "estimate over paired runs. The study leaves out sizes whose processes share cores. With weak "
    "scaling an epoch grows with the processes, and the speed-up compares rows per second. Dashed: "
    "ideal scaling from the baseline. Dotted: times that a cost model predicts, if there are "
    "predictions, with 90 % intervals."
)
NEEDS = "sizes"
# Columns in which the lines of a panel differ, in a scaling study and without one.
_STUDY = ["study_strategy", "variant", "study_network"]
_SERIES = ["strategy", "variant", "network", "processes"]


def draw(tables: common.Tables) -> Figure:
    """Draw a panel of times for each dataset and workload, in a study with a panel of speed-ups."""
    is_study, tables = not tables["scaling"].empty, without_fits(tables)
    table = tables["scaling"] if is_study else with_series(tables["configurations"], tables["runs"])
    left_out = table["shares_cores"].fillna(False).astype(bool) if is_study else table["nodes"] == 1
    measured = table[(table["kind"] != "unavailable") & ~left_out]
    gaps = common.gaps(tables["runs"])
    if measured.empty:
        why = " ".join(["No layout of several nodes or of a study was measured.", *gaps])
        return common.empty("Time by size", describe_data(tables["runs"]), why)
    parts = common.panels(measured)
    figure = common.new(7.2, 3.1 * len(parts))
    grid = figure.subplots(len(parts), 1 + is_study, squeeze=False)
    looks = common.series(measured, _STUDY if is_study else _SERIES)
    for panels, ((dataset, workload), frame) in zip(grid, parts, strict=True):
        x_column = "nodes" if frame["nodes"].max() > 1 else "ranks"
        if not is_study:
            _draw_reference(panels[0], frame, tables)
        for name, rows, look in looks:
            rows = rows[(rows["dataset"] == dataset) & (rows["workload"] == workload)]
            if rows.empty:
                continue
            rows, look = rows.sort_values(["ranks", "nodes"]), look | {"label": name}
            if is_study:
                _draw_study(*panels, rows, x_column, look)
                continue
            _draw_points(panels[0], rows, x_column, "train{}_seconds_per_epoch", look)
            # Marks of estimates, and of processes that shared cores, look different.
            for row in rows.itertuples():
                shape = "X" if row.kind == "estimated" else look["marker"]
                mark = {"color": look["color"], "markersize": 7}
                mark["markerfacecolor"] = "white" if row.oversubscribed else look["color"]
                panels[0].plot(row.nodes, row.train_seconds_per_epoch, shape, **mark)
        for axes in panels:
            _set_axes(axes, frame, x_column, set() if is_study else {1})
        title = common.panel_title(workload, frame, several=len(parts) > 1)
        panels[0].set_title(wrap(title, 3.0, PANEL_TITLE))
        panels[0].set_ylabel(f"{time_in_words(tables, workload)} (s)".replace(" per ", "\nper "))
        if is_study:
            panels[1].set_ylabel("speed-up over\nthe baseline")
    common.legend_of(figure, grid.ravel(), "series")
    what = f"{time_in_words(tables).capitalize()} by size"
    if is_study:
        what = f"{measured['scaling'].iloc[0].capitalize()} scaling"
    common.finish(figure, [what, describe_data(measured)], gaps)
    return figure


def with_series(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the size of each layout, and the measured rate in the name of networks.

    Rows of the slowest network come first, and rows without a measured rate last. A rate is the
    median of the current runs that ended ok.
    """
    ok = runs[runs["current"] & (runs["status"] == "ok")]
    rates = ok.groupby("network")["mbit_per_second"].median().dropna()
    layouts = [Layout.parse(layout) for layout in table["layout"]]
    names = {name: f"{name}: {number(rate)} Mbit/s" for name, rate in rates.items()}
    sized = table.assign(
        nodes=[layout.nodes for layout in layouts],
        processes=[f"{layout.processes} a node" for layout in layouts],
        ranks=[layout.ranks for layout in layouts],
        network=table["network"].replace(names),
        network_name=table["network"],
        rate=table["network"].map(dict(rates)).astype(float),
    )
    return sized.sort_values("rate", kind="stable")


def _draw_reference(axes: Axes, frame: pd.DataFrame, tables: common.Tables) -> None:
    """Draw the main references of a panel that were measured on one node."""
    names = frame.assign(network=frame["network_name"])[list(CONFIGURATION)]
    main = tables["speedup"][tables["speedup"]["reference"] == MAIN].merge(names)
    keys = ["dataset", "workload", *(f"reference_{key}" for key in CONFIGURATION[2:])]
    references = main[keys].set_axis(CONFIGURATION, axis="columns").drop_duplicates()
    for row in tables["configurations"].merge(references).itertuples():
        if Layout.parse(row.layout).nodes == 1 and pd.notna(row.train_seconds_per_epoch):
            axes.axhline(row.train_seconds_per_epoch, color="0.4", linewidth=1)
            axes.plot(1, row.train_seconds_per_epoch, "o", color="0.4", markersize=7)


def _draw_study(left: Axes, right: Axes, rows: pd.DataFrame, x_column: str, look: dict) -> None:
    """Draw a line of a study: measured, ideal and predicted times, and speed-ups."""
    _draw_points(left, rows, x_column, "seconds_per_epoch{}", look)
    first, ranks = rows.iloc[0], rows["ranks"]
    times = np.broadcast_to(first["seconds_per_epoch"], len(rows))
    ideal = times if first["scaling"] == WEAK else times * first["ranks"] / ranks
    dashed = {"linestyle": "--", "color": "0.4", "linewidth": 1}
    left.plot(rows[x_column], ideal, **dashed)
    predicted = rows.dropna(subset=["predicted_seconds_per_epoch"])
    if len(predicted):
        hollow = look | {"markerfacecolor": "white", "label": "predicted", "linestyle": ":"}
        _draw_points(left, predicted, x_column, "predicted{}_seconds_per_epoch", hollow)
    _draw_points(right, rows.dropna(subset=["speedup"]), x_column, "speedup{}", look)
    right.plot(rows[x_column], (rows["cores"] / first["cores"]).astype(float), **dashed)


def _draw_points(axes: Axes, rows: pd.DataFrame, x_column: str, column: str, look: dict) -> None:
    """Draw the values of a column with their intervals.

    `column` is a name with `{}` where the columns of the interval have `_low` and `_high`.
    """
    values, low, high = (rows[column.format(end)].astype(float) for end in ("", "_low", "_high"))
    bars = np.clip([values - low.fillna(values), high.fillna(values) - values], 0, None)
    axes.errorbar(rows[x_column], values, yerr=bars, capsize=3, linewidth=1.5, markersize=6, **look)


def _set_axes(axes: Axes, frame: pd.DataFrame, x_column: str, further: set[int]) -> None:
    """Set logarithmic axes with ticks at the measured and at `further` sizes."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    layouts = frame.sort_values("ranks").groupby(x_column)["layout"].unique().map(" ".join)
    sizes = sorted({*layouts.index, *further})
    axes.set_xticks(sizes, [f"{size}\n{layouts.get(size, '')}" for size in sizes])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"{'nodes' if x_column == 'nodes' else 'processes'}, and the layouts measured")
