"""Draw the resources of each configuration's processes: processor, memory, network, threads."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from escala.report.figures import common
from escala.report.figures.common import (
    describe_data,
    height_of,
    in_order,
    strategy_look,
    wrap_names,
)
from escala.report.figures.scaling import with_series
from escala.report.tables.views import add_labels

CATEGORY = "Resources"
CAPTION = (
    "What each process of a configuration used during the training steps of one epoch, in a "
    "separate run that is not timed: processor (100 % is one core), memory, running threads, and "
    "how often the process was taken off its core. Bytes sent and received are those of the "
    "network interface, which processes of a node share. For layouts on several numbers of nodes, "
    "points are means over the processes by the number of nodes, and bars are the range over "
    "processes. The numbers are in the table ``resources``."
)
NEEDS = "resources"
WHAT = "Resources of each process"
#: Columns of the table, each with the label of its axis and the unit of the axis as a multiple of
#: the column's unit.
SHOWN = (
    ("cpu_percent_mean", "processor (%)", 1),
    ("rss_bytes_max", "memory (MiB)", 2**20),
    ("sent_bytes_per_second", "sent (MB/s)", 1e6),
    ("received_bytes_per_second", "received (MB/s)", 1e6),
    ("threads_running_mean", "running threads", 1),
    ("involuntary_switches_per_second", "involuntary\nswitches (1/s)", 1),
)
# Columns in which the lines of a panel by nodes differ.
_SERIES = ["dataset", "workload", "strategy", "variant", "network", "processes"]


def draw(tables: common.Tables) -> Figure:
    """Draw a row for each configuration and a point for each process, or means by nodes."""
    table = add_labels(tables["resources"], tables["resources"])
    failed = table[table["rank"].isna()]
    why = [f"No samples: {row.label}: {row.status}: {row.reason}." for row in failed.itertuples()]
    processes = in_order(table[table["rank"].notna()])
    if processes.empty:
        data = describe_data(tables["resources"])
        return common.empty(WHAT, data, " ".join(["Nothing was sampled.", *why]))
    sized = with_series(processes, tables["runs"])
    by_nodes = sized["nodes"].nunique() > 1
    names = list(processes["label"].unique())
    wrapped = wrap_names(names)
    height = max(0.45, height_of(wrapped) + 0.15)
    figure = common.new(9, 5 if by_nodes else 2 * (height * len(names) + 0.7))
    # Two rows, because six panels in one row are too narrow for their numbers.
    grid = figure.subplots(2, len(SHOWN) // 2, sharex=by_nodes, sharey=not by_nodes)
    for axes, (column, what, unit) in zip(grid.flat, SHOWN, strict=True):
        if by_nodes:
            # Means over processes with their range, a line for each series.
            for name, rows, look in common.series(sized, _SERIES):
                values = rows.assign(value=rows[column].astype(float) / unit)
                by_size = values.groupby("nodes")["value"]
                means, least, most = by_size.mean().dropna(), by_size.min(), by_size.max()
                bars = [(means - least).dropna(), (most - means).dropna()]
                if len(means):
                    axes.errorbar(means.index, means, yerr=bars, capsize=3, label=name, **look)
            axes.set(ylabel=what, ylim=(0, None), xticks=sorted(sized["nodes"].unique()))
        else:
            for row in processes.dropna(subset=column).itertuples():
                look, value = strategy_look(row.strategy), getattr(row, column) / unit
                axes.plot(value, names.index(row.label), look.marker, color=look.colour)
            axes.set(xlabel=what, xlim=(0, None))
            axes.xaxis.set_major_locator(MaxNLocator(nbins=3, min_n_ticks=1))
        if processes[column].isna().all():
            style = {"ha": "center", "style": "italic"}
            axes.text(0.5, 0.5, "unavailable", transform=axes.transAxes, **style)
    if by_nodes:
        for axes in grid[-1]:
            axes.set_xlabel("nodes")
        common.legend_of(figure, grid.flat, "series")
    else:
        grid[0, 0].set_yticks(range(len(names)), wrapped)
        grid[0, 0].set_ylim(len(names) - 0.5, -0.5)
    common.finish(figure, [WHAT, describe_data(processes)], why)
    return figure
