"""Draw the training time per epoch by the number of nodes, with a line per network."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from escala.analysis.comparable import CONFIGURATION
from escala.report.figures import by_nodes, common
from escala.report.figures.looks import described, in_order
from escala.report.figures.text import PANEL_TITLE, wrap
from escala.report.tables.views import per_epoch, trained_by_steps

CATEGORY = "Time"
CAPTION = (
    "Training time per epoch by the number of nodes, on a logarithmic axis, with a line for each "
    "network and each number of processes a node. Medians over runs with their 95 % intervals, "
    "which are the range for fewer than six runs. The dashed line is the main reference, where it "
    "runs on one node, which uses no network. Hollow: ranks shared cores (oversubscribed). "
    "Crosses: estimated from runs that were cut short."
)
NEEDS = "several nodes"
WHAT = "Training time per epoch by nodes and network"


def draw(tables: common.Tables) -> Figure:
    """Draw medians with their 95 % intervals; a dashed line is the time on one node."""
    tables = trained_by_steps(tables)
    configurations = in_order(tables["configurations"])
    measured = by_nodes.with_nodes(configurations[configurations["kind"] != "unavailable"])
    across = measured[measured["nodes"] > 1]
    notes = common.gaps(tables["runs"])
    if across.empty:
        why = " ".join(["No layout of several nodes was measured.", *notes])
        return common.empty(WHAT, described(tables["runs"]), why)
    parts = by_nodes.panels(across)
    names = by_nodes.network_names(tables["runs"], across["network"].unique())
    figure = common.new(7.2, 3.0 * len(parts))
    grid = figure.subplots(len(parts), 1, squeeze=False)[:, 0]
    for axes, (heading, frame) in zip(grid, parts, strict=True):
        for row in _reference(measured, frame, tables["speedup"]).itertuples():
            axes.axhline(row.train_seconds_per_epoch, color="0.4", linestyle="--", linewidth=1)
            axes.plot(1, row.train_seconds_per_epoch, "o", color="0.4", markersize=7)
        _panel(axes, frame, names)
        what = per_epoch(tables, frame["workload"].iloc[0]).replace(" per ", "\nper ")
        axes.set_ylabel(f"{what} (s)")
        axes.set_title(wrap(heading, 4.0, PANEL_TITLE))
    common.legend_of(figure, grid, "network: measured Mbit/s")
    what = f"{per_epoch(tables).capitalize()} by nodes and network"
    common.finish(figure, [what, described(across)], notes)
    return figure


def _reference(measured: pd.DataFrame, frame: pd.DataFrame, speedup: pd.DataFrame) -> pd.DataFrame:
    """Return the main references of a panel that were measured on one node."""
    main = speedup[speedup["reference"] == 1].merge(frame[list(CONFIGURATION)])
    names = main[["dataset", "workload", *(f"reference_{key}" for key in CONFIGURATION[2:])]]
    names = names.set_axis(CONFIGURATION, axis="columns").drop_duplicates()
    return measured[measured["nodes"] == 1].merge(names)


def _panel(axes: Axes, frame: pd.DataFrame, names: dict[str, str]) -> None:
    for label, rows, look in by_nodes.lines(frame, names):
        shape = look.pop("marker")
        values, low, high = (
            rows[f"train{end}_seconds_per_epoch"].astype(float) for end in ("", "_low", "_high")
        )
        bars = np.array([values - low.fillna(values), high.fillna(values) - values])
        axes.errorbar(
            rows["nodes"], values, yerr=bars, capsize=3, linewidth=1.5, label=label, **look
        )
        for row in rows.itertuples():
            axes.plot(
                row.nodes, row.train_seconds_per_epoch, "X" if row.kind == "estimated" else shape,
                color=look["color"], markersize=7,
                markerfacecolor="white" if row.oversubscribed else look["color"],
            )  # fmt: skip
    most = int(frame["nodes"].max())
    layouts = frame.sort_values("processes").groupby("nodes")["layout"].unique().map(" ".join)
    ticks = [nodes for nodes in range(1, most + 1) if nodes in layouts or nodes == 1]
    axes.set_xticks(ticks, [f"{nodes}\n{layouts.get(nodes, '')}" for nodes in ticks])
    axes.set(xlim=(0.8, most + 0.4), xlabel="nodes, and the layouts measured on them")
    # Between 10 Mbit/s and a copy in memory, times differ by a factor of a hundred.
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    # Numbers between powers of ten, if there is room.
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
