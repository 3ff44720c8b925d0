"""Draw the mean resources of a configuration's processes by the number of nodes."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.report.figures.common import (
    LABEL,
    PANEL_TITLE,
    Tables,
    empty,
    legend_below,
    markers,
    network_names,
    new,
    note,
    ordered_palette,
    panels_by_nodes,
    title,
    with_nodes,
    wrap,
)
from escala.report.figures.looks import described, in_order, strategy_look
from escala.report.figures.resources import NETWORK, SHOWN, not_sampled
from escala.report.tables.views import labelled

CATEGORY = "Resources"
NEEDS = "resources by nodes"
WHAT = "Mean resources of a process by nodes and network"
_DATA = ["dataset", "workload"]
_MEANS = SHOWN[:4]
# The height of a panel, in inches.
_PANEL = 1.9
#: The end of an axis, as a multiple of the end that matplotlib chooses.
_ABOVE = 1.15
#: In MB/s: below it, the axis of a network is linear, so that it begins at 0.
_LINEAR_BELOW = 0.1


def draw(tables: Tables) -> Figure:
    """Draw means over processes with their range; lines connect the nodes of one network."""
    resources = with_nodes(labelled(tables["resources"], tables["resources"]))
    sampled = in_order(resources[resources["rank"].notna()])
    why = not_sampled(resources)
    across = sampled[sampled["nodes"] > 1]
    if across.empty:
        no_nodes = "Nothing was sampled on several nodes."
        return empty(WHAT, described(resources), " ".join([no_nodes, *why]))
    parts = panels_by_nodes(across)
    names = network_names(tables["runs"], across["network"].unique())
    figure = new(5.8, 2 * _PANEL * len(parts) + 0.4)
    grid = figure.subplots(2 * len(parts), 2, squeeze=False, sharex=True)
    by_part = grid.reshape(len(parts), len(_MEANS))
    for row, (heading, frame) in zip(by_part, parts, strict=True):
        one_node = sampled[sampled["nodes"] == 1].merge(frame[_DATA].drop_duplicates())
        for axes, (column, _, unit) in zip(row, _MEANS, strict=True):
            _panel(axes, frame, one_node, names, column, unit)
        # It stands above both panels of its row.
        row[0].set_title(wrap(heading, 4.6, PANEL_TITLE), loc="left")
    for column_axes, (column, what, _) in zip(by_part.T, _MEANS, strict=True):
        first, *others = column_axes
        # Axes that share take the limits of the first, and not those of the row with the most.
        top = max(axes.get_ylim()[1] for axes in column_axes)
        for axes in others:
            axes.sharey(first)
        if column in NETWORK:
            first.set_yscale("symlog", linthresh=_LINEAR_BELOW)
            first.yaxis.set_major_formatter("{x:g}")
        first.set_ylim(0, _ABOVE * top)
        for axes in column_axes:
            axes.set_ylabel(wrap(what, _PANEL, LABEL))
    for axes in grid[-1]:
        axes.set(xlabel="nodes", xticks=sorted({1, *across["nodes"]}))
    title(figure, WHAT, sampled)
    note(
        figure,
        [
            "During the training steps of one epoch, in a run of its own that is not timed. Means "
            "over the processes of a configuration, bars: their range. Bytes are those of the "
            "interface, for all processes that share it; 100 % is one core. Configurations on one "
            "node of the same data have the markers of their strategy.",
            *why,
        ],
    )
    legend_below(figure, grid.flat, "network: measured Mbit/s")
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
    several = frame["processes"].nunique() > 1
    a_node = ", " + frame["processes"].astype(str) + " a node"
    series = frame["network"].map(names).astype(object) + (a_node if several else "")
    known = frame.assign(series=series, value=_values(frame, column, unit)).dropna(subset="value")
    known = known.sort_values("network", key=lambda column: column.map(list(names).index))
    networks = known.drop_duplicates("series").set_index("series")["network"]
    colours, shapes = ordered_palette(list(names)), markers(list(names))
    for label, each in one_node.groupby("label", sort=False):
        look = strategy_look(each["strategy"].iloc[0])
        mean = _values(each, column, unit).mean()
        style = {"color": look.colour, "fillstyle": "none", "clip_on": False}
        axes.plot(1, mean, look.marker, label=label, **style)
    if known.empty:
        axes.text(0.5, 0.5, "unavailable", transform=axes.transAxes, ha="center", style="italic")
        return
    sns.lineplot(
        known,
        x="nodes",
        y="value",
        hue="series",
        style="series",
        palette={name: colours[network] for name, network in networks.items()},
        markers={name: shapes[network] for name, network in networks.items()},
        dashes=False,
        estimator="mean",
        errorbar=("pi", 100),
        err_style="bars",
        err_kws={"capsize": 3},
        ax=axes,
    )
    axes.get_legend().remove()
    axes.set_ylabel("")


def _values(frame: pd.DataFrame, column: str, unit: float) -> pd.Series:
    """Return a column in the unit of its axis, NaN where it is unknown."""
    return frame[column].astype(float) / unit
