"""Draw the training accuracy of each epoch and, if the runs validate, the one after the epoch."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from escala.report.figures import common
from escala.report.figures.common import PANEL_TITLE, Look, describe_data, looks, wrap
from escala.report.tables.views import add_labels

CATEGORY = "Quality"
CAPTION = (
    "Accuracy of every configuration by epoch. While an epoch trains, its training rows are "
    "scored. After the epoch, where the experiment validates, the validation rows are scored, or "
    "the test rows if the dataset has no validation rows. Lines are medians over repeats, points "
    "are single runs."
)
WHAT = "Accuracy per epoch"
KINDS = ("accuracy", "validation_accuracy")
#: The most configurations of a dataset and workload. The eye cannot separate more lines.
MOST = 20


def draw(tables: common.Tables) -> Figure:
    """Draw the median over repeats as a line per configuration and every run as a point."""
    shown, notes = common.select(tables, MOST, by_steps=True)
    if shown["runs"].empty:
        return common.empty(WHAT, describe_data(tables["runs"]), " ".join(notes))
    epochs = add_labels(shown["epochs"], shown["runs"])
    epochs = epochs[epochs["current"] & (epochs["status"] == "ok")]
    kinds = [kind for kind in KINDS if epochs[kind].notna().any()]
    if not kinds:
        # A program need not report its accuracy.
        return common.without_data(WHAT, shown, "an accuracy of its epochs")
    rows = common.panels(epochs)
    figure = common.new(3.4 * len(kinds) + 2.2, 3.0 * len(rows))
    look_of = looks(add_labels(shown["runs"], shown["runs"]))
    grid = figure.subplots(len(rows), len(kinds), squeeze=False)
    for line, ((_, workload), frame) in zip(grid, rows, strict=True):
        for axes, kind in zip(line, kinds, strict=True):
            _panel(axes, frame, kind, look_of)
            heading = common.panel_title(workload, frame, len(rows) > 1)
            axes.set_title(wrap(heading, 2.6, PANEL_TITLE))
    common.legend_of(figure, grid.flat, "configuration")
    common.finish(figure, [WHAT, describe_data(epochs)], notes)
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, kind: str, look_of: dict[str, Look]) -> None:
    """Draw the accuracy `kind`, one of `KINDS`, by epoch, with the look of each label."""
    known = frame.dropna(subset=[kind]).astype({"epoch": int, kind: float})
    present = [label for label in look_of if label in set(known["label"])]
    for place, label in enumerate(present):
        runs, look = known[known["label"] == label], look_of[label]
        # Configurations with equal updates have equal curves. A shift keeps all curves visible.
        shift = 0.24 * ((place + 0.5) / len(present) - 0.5)
        median = runs.groupby("epoch")[kind].median()
        axes.plot(
            median.index + shift, median, color=look.colour, marker=look.marker,
            linestyle=look.line, fillstyle=look.fill, markersize=5, linewidth=1.2, label=label,
        )  # fmt: skip
        style = {"edgecolors": [look.colour], **common.CIRCLES}
        axes.scatter(runs["epoch"] + shift, runs[kind], s=9, **style)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    label = "training accuracy\n(while training)"
    if kind == "validation_accuracy":
        sides = frame["validated_on"].dropna().unique()
        side = sides[0] if len(sides) == 1 else "validation"
        label = f"{side} accuracy\n(after the epoch)"
    axes.set(xlabel="epoch", ylabel=label)
