"""Training seconds per epoch of every configuration."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.explain.tables import by_gradient, labelled
from escala.figures.common import (
    Tables,
    gaps,
    left_out,
    new,
    note,
    nothing_by_epochs,
    palette,
    panel_title,
    panels,
    significant,
    title,
    without_data,
)

WHAT = "Training time per epoch"


def draw(tables: Tables) -> Figure:
    """Draw the median with its 95 % interval, and every run as a point, a row a configuration."""
    everything, tables = tables, by_gradient(tables)
    if tables["runs"].empty:
        return nothing_by_epochs(WHAT, everything)
    configurations = labelled(tables["configurations"], tables["runs"])
    if not (configurations["kind"] != "unavailable").any():
        return without_data(WHAT, tables)
    runs = labelled(tables["runs"], tables["runs"])
    runs = runs[(runs["status"] == "ok") & runs["comparable"]]
    parts = panels(configurations)
    sizes = [len(frame) for _, frame in parts]
    figure = new(8, 0.42 * sum(sizes) + 0.7 * len(parts) + 1.3)
    grid = figure.subplots(len(parts), 1, squeeze=False, height_ratios=sizes)[:, 0]
    for axes, ((dataset, workload), frame) in zip(grid, parts, strict=True):
        shown = runs[(runs["dataset"] == dataset) & (runs["workload"] == workload)]
        _panel(axes, frame.reset_index(drop=True), shown)
        axes.set_title(panel_title(workload, frame, len(parts) > 1))
    title(figure, WHAT, configurations)
    note(
        figure,
        [
            "Training steps only. Bars: 95 % bootstrap interval of the median, which is the range "
            "for fewer than six runs; points: single runs of all sessions. Machines drift between "
            "sessions: for ratios see the figure on speed-up.",
            *left_out(everything),
            *gaps(tables["runs"]),
        ],
    )
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, runs: pd.DataFrame) -> None:
    colours = palette(list(frame["strategy"].unique()))
    for row in frame.itertuples():
        colour = colours[row.strategy]
        if row.kind == "unavailable":
            axes.text(
                0.01, row.Index, "no run ended ok", va="center", style="italic",
                transform=axes.get_yaxis_transform(),
            )  # fmt: skip
            continue
        points = runs.loc[runs["label"] == row.label, "train_seconds_per_epoch"].astype(float)
        offsets = np.linspace(-0.12, 0.12, len(points)) if len(points) > 1 else [0.0]
        axes.scatter(points, row.Index + np.array(offsets), s=14, color=colour, alpha=0.5, zorder=2)
        median = row.train_seconds_per_epoch
        if pd.notna(row.train_low_seconds_per_epoch):
            ends = (row.train_low_seconds_per_epoch, row.train_high_seconds_per_epoch)
            axes.hlines(row.Index, *ends, color=colour, linewidth=2, zorder=3)
        axes.scatter(median, row.Index, s=70, marker="|", color=colour, linewidth=2.5, zorder=4)
        axes.annotate(
            f"{significant(median)} s", (median, row.Index), (0, 7), textcoords="offset points",
            ha="center", fontsize=8,
        )  # fmt: skip
    names = frame["label"] + np.where(frame["oversubscribed"], "\n(oversubscribed)", "")
    axes.set_yticks(range(len(frame)), names)
    axes.set(xlabel="training time per epoch (s)", ylim=(len(frame) - 0.4, -0.7))
    axes.set_xlim(0, 1.08 * axes.dataLim.x1)
