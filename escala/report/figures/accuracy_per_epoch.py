"""Draw the accuracy of each epoch in training and, if the runs validate, after it."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from escala.report.figures.common import (
    PANEL_TITLE,
    Tables,
    gaps,
    left_out,
    legend_of,
    new,
    not_all,
    note,
    nothing_trained_by_steps,
    panel_title,
    panels,
    title,
    without_data,
    wrap,
)
from escala.report.figures.looks import Look, looks
from escala.report.tables.views import fastest, labelled, trained_by_steps

CATEGORY = "Quality"
WHAT = "Accuracy per epoch"
KINDS = ("accuracy", "validation_accuracy")
#: Configurations of a dataset and workload whose lines can be told apart.
MOST = 20


def draw(tables: Tables) -> Figure:
    """Draw the median over repeats as a line per configuration and every run as a point."""
    everything, of_steps = tables, trained_by_steps(tables)
    tables = fastest(of_steps, MOST)
    if tables["runs"].empty:
        return nothing_trained_by_steps(WHAT, everything)
    epochs = labelled(tables["epochs"], tables["runs"])
    epochs = epochs[epochs["current"] & (epochs["status"] == "ok")]
    kinds = [kind for kind in KINDS if epochs[kind].notna().any()]
    if not kinds:
        # A program need not tell of its accuracy.
        return without_data(WHAT, tables, "an accuracy of its epochs")
    rows = panels(epochs)
    figure = new(3.4 * len(kinds) + 2.2, 3.0 * len(rows))
    shown = looks(labelled(tables["runs"], tables["runs"]))
    grid = figure.subplots(len(rows), len(kinds), squeeze=False)
    for line, ((_, workload), frame) in zip(grid, rows, strict=True):
        for axes, kind in zip(line, kinds, strict=True):
            _panel(axes, frame, kind, shown)
            heading = panel_title(workload, frame, len(rows) > 1)
            axes.set_title(wrap(heading, 2.6, PANEL_TITLE))
    legend_of(figure, grid.flat, "configuration")
    title(figure, WHAT, epochs)
    note(
        figure,
        [
            "Lines: median over repeats; points: single runs.",
            *left_out(everything),
            *not_all(of_steps, tables),
            *gaps(tables["runs"]),
        ],
    )
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, kind: str, shown_as: dict[str, Look]) -> None:
    shown = frame.dropna(subset=[kind]).astype({"epoch": int, kind: float})
    labels = set(shown["label"])
    present = [label for label in shown_as if label in labels]
    for position, label in enumerate(present):
        runs, look = shown[shown["label"] == label], shown_as[label]
        # Configurations with equal updates have equal curves; side by side, none hides another.
        shift = 0.24 * ((position + 0.5) / len(present) - 0.5)
        median = runs.groupby("epoch")[kind].median()
        axes.plot(
            median.index + shift, median, color=look.colour, marker=look.marker,
            linestyle=look.line, fillstyle=look.fill, markersize=5, linewidth=1.2, label=label,
        )  # fmt: skip
        axes.scatter(runs["epoch"] + shift, runs[kind], s=9, color=look.colour, alpha=0.45)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set(xlabel="epoch", ylabel=_words(kind, frame))


def _words(kind: str, frame: pd.DataFrame) -> str:
    """Return the label of an axis, which names the rows that were validated on."""
    if kind == "accuracy":
        return "training accuracy\n(while training)"
    sides = frame["validated_on"].dropna().unique()
    return f"{sides[0] if len(sides) == 1 else 'validation'} accuracy\n(after the epoch)"
