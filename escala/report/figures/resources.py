"""Draw the resources of each configuration's processes: processor, memory, network, threads."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from escala.report.figures import common
from escala.report.figures.looks import described, in_order, strategy_look
from escala.report.figures.text import height_of, wrapped_names
from escala.report.tables.views import labelled

CATEGORY = "Resources"
CAPTION = (
    "What each process of a configuration used during the training steps of one epoch, in a run of "
    "its own that is not timed: processor (100 % is one core), memory, running threads, and how "
    "often it was taken off its core. Bytes sent and received are those of the network's "
    "interface, which processes share. The numbers are in the table ``resources``."
)
NEEDS = "resources"
WHAT = "Resources of each process"
#: Columns of bytes of the network.
NETWORK = ("sent_bytes_per_second", "received_bytes_per_second")
#: Column, its name, and the unit of the axis.
SHOWN = (
    ("cpu_percent_mean", "processor (%)", 1),
    ("rss_bytes_max", "memory (MiB)", 2**20),
    (NETWORK[0], "sent (MB/s)", 1e6),
    (NETWORK[1], "received (MB/s)", 1e6),
    ("threads_running_mean", "running threads", 1),
    ("involuntary_switches_per_second", "involuntary\nswitches (1/s)", 1),
)


def draw(tables: common.Tables) -> Figure:
    """Draw a row for each configuration and a point for each of its processes."""
    processes, why = sampled(tables)
    if processes.empty:
        data = described(tables["resources"])
        return common.empty(WHAT, data, " ".join(["Nothing was sampled.", *why]))
    names = list(processes["label"].unique())
    written = wrapped_names(names)
    row = max(0.45, height_of(written) + 0.15)
    figure = common.new(9, 2 * (row * len(names) + 0.7))
    # Two rows, because six panels in one row are too narrow for their numbers.
    grid = figure.subplots(2, len(SHOWN) // 2, sharey=True)
    for axes, (column, what, unit) in zip(grid.flat, SHOWN, strict=True):
        known = processes.dropna(subset=column)
        for each in known.itertuples():
            look, value = strategy_look(each.strategy), getattr(each, column) / unit
            axes.plot(value, names.index(each.label), look.marker, color=look.colour, alpha=0.7)
        axes.set(xlabel=what, xlim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=3, min_n_ticks=1))
        if known.empty:
            unavailable(axes)
    grid[0, 0].set_yticks(range(len(names)), written)
    grid[0, 0].set_ylim(len(names) - 0.5, -0.5)
    common.finish(figure, [WHAT, described(processes)], why)
    return figure


def sampled(tables: common.Tables) -> tuple[pd.DataFrame, list[str]]:
    """Return the processes that were sampled, and a note on each configuration without any."""
    table = labelled(tables["resources"], tables["resources"])
    failed = table[table["rank"].isna()]
    why = [f"No samples: {row.label}: {row.status}: {row.reason}." for row in failed.itertuples()]
    return in_order(table[table["rank"].notna()]), why


def unavailable(axes: Axes) -> None:
    """Say in place of points that nothing is known."""
    axes.text(0.5, 0.5, "unavailable", transform=axes.transAxes, ha="center", style="italic")
