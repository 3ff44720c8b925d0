"""Draw the resources of each configuration's processes: processor, memory, network, threads."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from escala.report.figures.common import Tables, empty, name_height, new, note, title, wrapped_names
from escala.report.figures.looks import described, in_order, strategy_look
from escala.report.tables.views import labelled

CATEGORY = "Resources"
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


def draw(tables: Tables) -> Figure:
    """Draw a row for each configuration and a point for each of its processes."""
    resources = labelled(tables["resources"], tables["resources"])
    sampled = resources[resources["rank"].notna()]
    why = not_sampled(resources)
    if sampled.empty:
        return empty(WHAT, described(resources), " ".join(["Nothing was sampled.", *why]))
    names = list(in_order(sampled)["label"].unique())
    written = wrapped_names(names)
    row = max(0.45, name_height(written) + 0.15)
    figure = new(9, 2 * (row * len(names) + 0.7))
    # Two rows, because six panels in one row are too narrow for their numbers.
    grid = figure.subplots(2, len(SHOWN) // 2, sharey=True)
    for axes, (column, what, unit) in zip(grid.flat, SHOWN, strict=True):
        _panel(axes, sampled, names, column, unit)
        axes.set_xlabel(what)
    grid[0, 0].set_yticks(range(len(names)), written)
    grid[0, 0].set_ylim(len(names) - 0.5, -0.5)
    title(figure, WHAT, sampled)
    note(
        figure,
        [
            "During the training steps of one epoch, in a run of its own that is not timed. Bytes "
            "are those of the interface, for all processes that share it; 100 % is one core.",
            *why,
        ],
    )
    return figure


def not_sampled(resources: pd.DataFrame) -> list[str]:
    """Return a note on each configuration without samples; the table is labelled."""
    failed = resources[resources["rank"].isna()]
    return [f"No samples: {row.label}: {row.status}: {row.reason}." for row in failed.itertuples()]


def _panel(axes: Axes, frame: pd.DataFrame, names: list[str], column: str, unit: float) -> None:
    known = frame.dropna(subset=column)
    for row in known.itertuples():
        value = getattr(row, column) / unit
        look = strategy_look(row.strategy)
        axes.plot(value, names.index(row.label), look.marker, color=look.colour, alpha=0.7)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3, min_n_ticks=1))
    if known.empty:
        axes.text(0.5, 0.5, "unavailable", transform=axes.transAxes, ha="center", style="italic")
