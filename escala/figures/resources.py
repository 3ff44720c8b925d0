"""What the processes of each configuration used: processor, memory, network and threads."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.explain.tables import labelled
from escala.figures.common import Tables, described, empty, new, note, palette, title

WHAT = "Resources of each process"
# column, what it is, and what one unit on the axis is
_SHOWN = (
    ("cpu_percent_mean", "processor (%)", 1),
    ("rss_bytes_max", "memory (MiB)", 2**20),
    ("sent_bytes_per_second", "sent (MB/s)", 1e6),
    ("received_bytes_per_second", "received (MB/s)", 1e6),
    ("threads_running_mean", "running threads", 1),
    ("involuntary_switches_per_second", "involuntary\nswitches (1/s)", 1),
)


def draw(tables: Tables) -> Figure:
    """Draw a row for each configuration and a point for each of its processes."""
    resources = labelled(tables["resources"], tables["resources"])
    sampled = resources[resources["rank"].notna()]
    failed = resources[resources["rank"].isna()]
    why = [f"No samples: {row.label}: {row.status}: {row.reason}." for row in failed.itertuples()]
    if sampled.empty:
        return empty(WHAT, described(resources), " ".join(["Nothing was sampled.", *why]))
    names = list(sampled["label"].unique())
    figure = new(12, 0.45 * len(names) + 2.0)
    grid = figure.subplots(1, len(_SHOWN), sharey=True)
    colours = palette(list(sampled["strategy"].unique()))
    for axes, (column, what, unit) in zip(grid, _SHOWN, strict=True):
        _panel(axes, sampled, names, column, unit, colours)
        axes.set_xlabel(what)
    grid[0].set_yticks(range(len(names)), names)
    grid[0].set_ylim(len(names) - 0.5, -0.5)
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


def _panel(
    axes: Axes, frame: pd.DataFrame, names: list[str], column: str, unit: float, colours: dict
) -> None:
    known = frame.dropna(subset=column)
    for row in known.itertuples():
        value = getattr(row, column) / unit
        axes.plot(value, names.index(row.label), "o", color=colours[row.strategy], alpha=0.7)
    axes.set_xlim(left=0)
    if known.empty:
        axes.text(0.5, 0.5, "unavailable", transform=axes.transAxes, ha="center", style="italic")
