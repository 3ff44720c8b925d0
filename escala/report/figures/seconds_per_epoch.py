"""Draw the training seconds per epoch of every configuration."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.analysis.cost_model.predictions import BOUNDS, EXTRAPOLATED
from escala.record.comparable import CONFIGURATION
from escala.report.figures.common import (
    PANEL_TITLE,
    Tables,
    cut_short,
    gaps,
    left_out,
    name_height,
    new,
    not_all,
    note,
    nothing_trained_by_steps,
    panel_title,
    panels,
    title,
    without_data,
    wrap,
    wrapped_names,
)
from escala.report.figures.looks import in_order, significant, strategy_look
from escala.report.tables.views import (
    fastest,
    labelled,
    only_whole_runs,
    per_epoch,
    trained_by_steps,
)

CATEGORY = "Time"
WHAT = "Training time per epoch"


def draw(tables: Tables) -> Figure:
    """Draw a row per configuration: the median with its 95 % interval, and each run as a point."""
    everything, of_steps = tables, trained_by_steps(tables)
    tables = fastest(of_steps)
    if tables["runs"].empty:
        return nothing_trained_by_steps(WHAT, everything)
    configurations = labelled(tables["configurations"], tables["runs"])
    if not (configurations["kind"] != "unavailable").any():
        return without_data(WHAT, tables, "times measured at one sitting")
    runs = labelled(tables["runs"], tables["runs"])
    runs = runs[(runs["status"] == "ok") & runs["comparable"]]
    predictions = tables["predictions"].dropna(subset="predicted_low_seconds_per_epoch")
    bands = predictions.set_index(list(CONFIGURATION))
    parts = [(names, in_order(frame)) for names, frame in panels(configurations)]
    row = max(0.42, name_height(_names(configurations)) + 0.15)
    sizes = [len(frame) for _, frame in parts]
    figure = new(8, row * sum(sizes) + 0.9 * len(parts))
    grid = figure.subplots(len(parts), 1, squeeze=False, height_ratios=sizes)[:, 0]
    for axes, ((dataset, workload), frame) in zip(grid, parts, strict=True):
        shown = runs[(runs["dataset"] == dataset) & (runs["workload"] == workload)]
        _panel(axes, frame.reset_index(drop=True), shown, bands)
        axes.set_xlabel(f"{per_epoch(tables, workload)} (s)")
        axes.set_title(wrap(panel_title(workload, frame, len(parts) > 1), 5.0, PANEL_TITLE))
    title(figure, per_epoch(tables).capitalize(), configurations)
    note(
        figure,
        [
            *["Training steps only."] * (not only_whole_runs(tables)),
            "Bars: 95 % interval of the median, which is the range "
            "for fewer than six runs; points: single runs of all sessions. Machines drift between "
            "sessions: for ratios see the figure on speed-up.",
            *[_BANDS] * bool((bands["basis"] != BOUNDS).any()),
            *[_BOUNDS] * bool((bands["basis"] == BOUNDS).any()),
            *left_out(everything),
            *not_all(of_steps, tables),
            *gaps(tables["runs"]),
        ],
    )
    return figure


_BANDS = (
    "Grey bands: what the cost model predicts, with its 90 % interval for a further run; hatched "
    "where it goes beyond what was calibrated."
)

_BOUNDS = (
    "Grey bands of programs: estimated bounds, from full overlap of computing and exchange to none."
)


def _panel(axes: Axes, frame: pd.DataFrame, runs: pd.DataFrame, bands: pd.DataFrame) -> None:
    for row in frame.itertuples():
        colour = strategy_look(row.strategy).colour
        names = tuple(getattr(row, name) for name in CONFIGURATION)
        if names in bands.index:
            _band(axes, row.Index, bands.loc[names])
        if row.kind == "unavailable":
            why = "no run ended ok" + " at one sitting" * bool(row.runs_ok)
            axes.text(
                0.01, row.Index, why, va="center", style="italic",
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
    axes.set_yticks(range(len(frame)), _names(frame))
    axes.set_ylim(len(frame) - 0.4, -0.7)
    axes.set_xlim(0, 1.08 * axes.dataLim.x1)


def _band(axes: Axes, place: int, predicted: pd.Series) -> None:
    """Draw the interval of a prediction behind the points, and its median."""
    median, low, high = (
        predicted[f"predicted{end}_seconds_per_epoch"] for end in ("", "_low", "_high")
    )
    hatch = "////" if predicted["basis"] == EXTRAPOLATED else None
    axes.barh(
        place, high - low, left=low, height=0.6, color="0.88", edgecolor="0.7", linewidth=0,
        hatch=hatch, zorder=1,
    )  # fmt: skip
    if pd.notna(median):
        axes.vlines(median, place - 0.3, place + 0.3, color="0.5", linewidth=1, zorder=1)


def _names(frame: pd.DataFrame) -> list[str]:
    shared = np.where(frame["oversubscribed"], "\n(oversubscribed)", "")
    return wrapped_names(frame["label"] + shared + cut_short(frame))
