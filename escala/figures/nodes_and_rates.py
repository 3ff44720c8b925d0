"""Training time per epoch against the number of nodes, a line per network between them."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.explain.tables import BASELINE, by_gradient
from escala.figures.common import (
    Tables,
    described,
    empty,
    gaps,
    legend_of,
    markers,
    new,
    note,
    palette,
    panel_title,
    significant,
    title,
)
from escala.parallel.layout import Layout

WHAT = "Training time per epoch by nodes and network"
_PANEL = ["dataset", "workload", "strategy", "variant"]


def draw(tables: Tables) -> Figure:
    """Draw medians with their 95 % intervals; one process on one node is where lines begin."""
    tables = by_gradient(tables)
    configurations = tables["configurations"]
    measured = configurations[configurations["kind"] != "unavailable"]
    measured = measured.assign(nodes=[Layout.parse(layout).nodes for layout in measured["layout"]])
    across = measured[measured["nodes"] > 1]
    if across.empty:
        why = ["No layout of several nodes was measured.", *gaps(tables["runs"])]
        return empty(WHAT, described(tables["runs"]), " ".join(why))
    parts = list(across.groupby(_PANEL, sort=False))
    rates = tables["runs"].groupby("network")["mbit_per_second"].median().dropna()
    names = {
        network: f"{network}: {significant(rates[network])}" if network in rates else network
        for network in across["network"].unique()
    }
    figure = new(7.5, 3.6 * len(parts) + 1.0)
    grid = figure.subplots(len(parts), 1, squeeze=False)[:, 0]
    for axes, (panel, frame) in zip(grid, parts, strict=True):
        _panel(axes, frame, _baseline(measured, panel), names)
        axes.set_title(f"{panel[2]} {panel[3]}: {panel_title(panel[1], frame, several=True)}")
    legend_of(figure, grid, "network: measured Mbit/s")
    title(figure, WHAT, across)
    note(
        figure,
        [
            "Training steps only. Bars: 95 % bootstrap interval of the median, which is the range "
            "for fewer than six runs; dashed: one process on one node, which uses no network; "
            "hollow: ranks shared cores (oversubscribed).",
            *gaps(tables["runs"]),
        ],
    )
    return figure


def _baseline(measured: pd.DataFrame, panel: tuple) -> pd.DataFrame:
    """Return the one process on one node that a panel's lines begin at, if it was measured."""
    dataset, workload, _, variant = panel
    wanted = [dataset, workload, variant, *BASELINE]
    keys = ["dataset", "workload", "variant", "strategy", "layout"]
    return measured[(measured[keys] == wanted).all(axis=1)]


def _panel(axes: Axes, frame: pd.DataFrame, baseline: pd.DataFrame, names: dict[str, str]) -> None:
    colours, shapes = palette(list(names)), markers(list(names))
    for row in baseline.itertuples():
        axes.axhline(row.train_seconds_per_epoch, color="0.4", linestyle="--", linewidth=1)
        axes.plot(1, row.train_seconds_per_epoch, "o", color="0.4", markersize=7)
    frame = frame.assign(processes=[Layout.parse(layout).processes for layout in frame["layout"]])
    # One line goes through layouts of as many processes a node.
    for (network, _), line in frame.groupby(["network", "processes"], sort=False):
        _line(axes, line.sort_values("nodes"), colours[network], shapes[network], names[network])
    most = int(frame["nodes"].max())
    axes.set_xticks(range(1, most + 1))
    axes.set(xlabel="nodes", ylabel="training time\nper epoch (s)", xlim=(0.8, most + 0.4))
    # From 10 Mbit/s to a copy in memory times differ a hundredfold.
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")


def _line(axes: Axes, line: pd.DataFrame, colour: tuple, shape: str, name: str) -> None:
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
        linewidth=1.5,
        label=name,
    )
    for row, value in zip(line.itertuples(), values, strict=True):
        face = "white" if row.oversubscribed else colour
        axes.plot(row.nodes, value, shape, color=colour, markerfacecolor=face, markersize=7)
        axes.annotate(
            row.layout + " (estimated)" * (row.kind == "estimated"),
            (row.nodes, value),
            (6, 4),
            textcoords="offset points",
            fontsize=7,
        )
