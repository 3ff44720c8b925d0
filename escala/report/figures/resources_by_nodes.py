"""Draw the mean resources of a configuration's processes by the number of nodes."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.report.figures import by_nodes, common
from escala.report.figures.looks import described, strategy_look
from escala.report.figures.resources import NETWORK, SHOWN, sampled, unavailable
from escala.report.figures.text import PANEL_TITLE, wrap

CATEGORY = "Resources"
CAPTION = (
    "Mean use of the processor (100 % is one core), memory and network by the processes of a "
    "configuration, by the number of nodes, with a line for each network and each number of "
    "processes a node, and a row for each strategy and variant. Bars are the range over processes. "
    "Sampled during the training steps of one epoch, in a run of its own that is not timed. Bytes "
    "are those of the network's interface, which processes share, on an axis that is logarithmic "
    "from 0.1 MB/s on. Configurations on one node have the markers of their strategy."
)
NEEDS = "resources by nodes"
WHAT = "Mean resources of a process by nodes and network"
_MEANS = SHOWN[:4]
#: The end of an axis, as a multiple of the end that matplotlib chooses.
_ABOVE = 1.15
#: In MB/s: below it, the axis of a network is linear, so that it begins at 0.
_LINEAR_BELOW = 0.1


def draw(tables: common.Tables) -> Figure:
    """Draw means over processes with their range; lines connect the nodes of one network."""
    processes, why = sampled(tables)
    processes = by_nodes.with_nodes(processes)
    across = processes[processes["nodes"] > 1]
    if across.empty:
        why = " ".join(["Nothing was sampled on several nodes.", *why])
        return common.empty(WHAT, described(tables["resources"]), why)
    parts = by_nodes.panels(across)
    names = by_nodes.network_names(tables["runs"], across["network"].unique())
    figure = common.new(11, 2.2 * len(parts))
    grid = figure.subplots(len(parts), len(_MEANS), squeeze=False, sharex=True, sharey="col")
    for row, (heading, frame) in zip(grid, parts, strict=True):
        data = frame[["dataset", "workload"]].drop_duplicates()
        one_node = processes[processes["nodes"] == 1].merge(data)
        for axes, (column, what, unit) in zip(row, _MEANS, strict=True):
            _panel(axes, frame, one_node, names, column, unit)
            axes.set_ylabel(what)
        # It stands above all panels of its row.
        row[0].set_title(wrap(heading, 6.0, PANEL_TITLE), loc="left")
    for axes, (column, _, _) in zip(grid[0], _MEANS, strict=True):
        top = axes.get_ylim()[1]
        if column in NETWORK:
            axes.set_yscale("symlog", linthresh=_LINEAR_BELOW)
            axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylim(0, _ABOVE * top)
    for axes in grid[-1]:
        axes.set(xlabel="nodes", xticks=sorted({1, *across["nodes"]}))
    common.legend_of(figure, grid.flat, "network: measured Mbit/s")
    common.finish(figure, [WHAT, described(processes)], why)
    return figure


def _panel(
    axes: Axes,
    frame: pd.DataFrame,
    one_node: pd.DataFrame,
    names: dict[str, str],
    column: str,
    unit: float,
) -> None:
    """Draw the means of a column by network and processes a node, and those on one node."""
    for label, each in one_node.groupby("label", sort=False):
        look = strategy_look(each["strategy"].iloc[0])
        style = {"color": look.colour, "fillstyle": "none", "clip_on": False}
        axes.plot(1, each[column].astype(float).mean() / unit, look.marker, label=label, **style)
    if frame[column].isna().all():
        unavailable(axes)
        return
    for label, rows, look in by_nodes.lines(frame, names):
        values = rows.assign(value=rows[column].astype(float) / unit).groupby("nodes")["value"]
        means, least, most = values.mean(), values.min(), values.max()
        bars = [means - least, most - means]
        axes.errorbar(means.index, means, yerr=bars, capsize=3, label=label, **look)
