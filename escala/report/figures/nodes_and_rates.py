"""Draw the training time per epoch by the number of nodes, with a line per network."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from escala.record.comparable import CONFIGURATION
from escala.report.figures.common import (
    PANEL_TITLE,
    Tables,
    empty,
    gaps,
    legend_below,
    network_names,
    new,
    note,
    ordered_palette,
    panels_by_nodes,
    title,
    with_nodes,
    wrap,
)
from escala.report.figures.looks import MARKERS, Colour, described, in_order
from escala.report.tables.views import only_whole_runs, per_epoch, trained_by_steps

CATEGORY = "Time"
NEEDS = "several nodes"
WHAT = "Training time per epoch by nodes and network"
_LINES = ("-", "--", "-.", ":")
#: Markers of networks; a cross stands for an estimated time.
_SHAPES = MARKERS.replace("X", "")


def draw(tables: Tables) -> Figure:
    """Draw medians with their 95 % intervals; a dashed line is the time on one node."""
    tables = trained_by_steps(tables)
    configurations = in_order(tables["configurations"])
    measured = configurations[configurations["kind"] != "unavailable"]
    measured = with_nodes(measured)
    across = measured[measured["nodes"] > 1]
    if across.empty:
        why = ["No layout of several nodes was measured.", *gaps(tables["runs"])]
        return empty(WHAT, described(tables["runs"]), " ".join(why))
    parts = panels_by_nodes(across)
    names = network_names(tables["runs"], across["network"].unique())
    figure = new(5.2, 3.0 * len(parts))
    grid = figure.subplots(len(parts), 1, squeeze=False)[:, 0]
    for axes, (heading, frame) in zip(grid, parts, strict=True):
        _panel(axes, frame, _reference(measured, frame, tables["speedup"]), names)
        what = per_epoch(tables, frame["workload"].iloc[0]).replace(" per ", "\nper ")
        axes.set_ylabel(f"{what} (s)")
        axes.set_title(wrap(heading, 4.0, PANEL_TITLE))
    title(figure, f"{per_epoch(tables).capitalize()} by nodes and network", across)
    note(
        figure,
        [
            *["Training steps only."] * (not only_whole_runs(tables)),
            "Bars: 95 % interval of the median, which is the range "
            "for fewer than six runs; dashed: the reference on one node, which uses no network; "
            "hollow: ranks shared cores (oversubscribed); crosses: estimated, from runs cut short.",
            *gaps(tables["runs"]),
        ],
    )
    legend_below(figure, grid, "network: measured Mbit/s")
    return figure


def _reference(measured: pd.DataFrame, frame: pd.DataFrame, speedup: pd.DataFrame) -> pd.DataFrame:
    """Return the main reference on one node, if it was measured."""
    main = speedup[speedup["reference"] == 1].merge(frame[list(CONFIGURATION)])
    names = main[["dataset", "workload", *(f"reference_{key}" for key in CONFIGURATION[2:])]]
    wanted = set(names.itertuples(index=False, name=None))
    one_node = measured[measured["nodes"] == 1]
    own = one_node[list(CONFIGURATION)].itertuples(index=False, name=None)
    return one_node[[name in wanted for name in own]]


def _panel(axes: Axes, frame: pd.DataFrame, reference: pd.DataFrame, names: dict[str, str]) -> None:
    colours, shapes = ordered_palette(list(names)), dict(zip(names, cycle(_SHAPES)))
    for row in reference.itertuples():
        axes.axhline(row.train_seconds_per_epoch, color="0.4", linestyle="--", linewidth=1)
        axes.plot(1, row.train_seconds_per_epoch, "o", color="0.4", markersize=7)
    # A line connects layouts with the same number of processes a node.
    several = frame["processes"].nunique() > 1
    frame = frame.sort_values("network", key=lambda column: column.map(list(names).index))
    for (network, processes), line in frame.groupby(["network", "processes"], sort=False):
        name = names[network] + f", {processes} a node" * several
        style = _LINES[sorted(frame["processes"].unique()).index(processes) % len(_LINES)]
        _line(axes, line.sort_values("nodes"), colours[network], shapes[network], style, name)
    most = int(frame["nodes"].max())
    layouts = frame.sort_values("processes").groupby("nodes")["layout"].unique().map(" ".join)
    ticks = [nodes for nodes in range(1, most + 1) if nodes in layouts or nodes == 1]
    axes.set_xticks(ticks, [f"{nodes}\n{layouts.get(nodes, '')}" for nodes in ticks])
    axes.set(xlim=(0.8, most + 0.4))
    axes.set_xlabel("nodes, and the layouts measured on them")
    # Between 10 Mbit/s and a copy in memory, times differ by a factor of a hundred.
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    # Numbers between powers of ten, if there is room.
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))


def _line(
    axes: Axes, line: pd.DataFrame, colour: Colour, shape: str, style: str, name: str
) -> None:
    values = line["train_seconds_per_epoch"].astype(float)
    low, high = (
        line[f"train_{end}_seconds_per_epoch"].astype(float).fillna(values)
        for end in ("low", "high")
    )
    axes.errorbar(
        line["nodes"],
        values,
        yerr=np.array([values - low, high - values]),
        color=colour,
        capsize=3,
        linestyle=style,
        linewidth=1.5,
        label=name,
    )
    for row, value in zip(line.itertuples(), values, strict=True):
        face = "white" if row.oversubscribed else colour
        marker = "X" if row.kind == "estimated" else shape
        axes.plot(row.nodes, value, marker, color=colour, markerfacecolor=face, markersize=7)
