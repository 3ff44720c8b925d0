"""Draw the confusion matrices of every configuration, pooled over repeats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from escala.analysis.comparable import CONFIGURATION
from escala.record.collect import MOST_CLASSES
from escala.report.figures import common
from escala.report.figures.common import (
    LABEL,
    PANEL_TITLE,
    describe_data,
    height_of,
    in_order,
    wrap,
)
from escala.report.tables.views import add_labels, classes_without_tests

CATEGORY = "Quality"
CAPTION = (
    "How the test rows of each class were classified: their numbers, added up over repeats. "
    "Colours are fractions of the true class."
)
NEEDS = "classes"
WHAT = "Confusion matrices, pooled over repeats"
COLOURS = "Blues"
# The side of a matrix of many classes, in inches.
_SIDE_OF_MANY = 8.0
#: The most panels of a dataset and workload.
MOST = 12
#: With at most this many classes, a matrix has the names of classes and a number in each cell.
MOST_NAMED = 30
#: The data that these figures need, in words.
MISSING = f"scores of classes, which are kept of at most {MOST_CLASSES}"


def draw(tables: common.Tables) -> Figure:
    """Draw a panel per configuration: counts, coloured by the fraction of the true class."""
    confusion, notes = select_table(tables, "confusion")
    if confusion.empty:
        return common.without_data(WHAT, tables, MISSING)
    classes = confusion.groupby(["dataset", "workload"])["true_class"].nunique().max()
    # Names below the columns are rotated, so their lines take more than their height.
    lines = height_of(map(class_name, confusion["true_class"].unique()))
    side = max(2.6, max(0.58, 1.7 * lines) * classes)
    if are_many := classes > MOST_NAMED:
        side = _SIDE_OF_MANY
        notes = [f"Numbers and names of {classes} classes are in the table confusion.", *notes]
    panel = partial(_panel, named=not are_many)
    figure = panels(
        confusion, (side + 1.2, side + 1.8), panel, ScalarMappable(Normalize(0, 1), COLOURS),
        label="fraction of the true class",
    )  # fmt: skip
    common.finish(figure, [WHAT, describe_data(confusion)], notes)
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, named: bool) -> str:
    """Draw the matrix of a configuration, and return how many runs the matrix adds up."""
    classes = list(frame["true_class"].unique())
    names = list(map(class_name, classes)) if named else []
    matrix = frame.pivot_table(
        index="true_class", columns="predicted_class", values="rows", aggfunc="sum"
    ).loc[classes, classes].astype(int)  # fmt: skip
    fractions = matrix.div(matrix.sum(axis=1), axis=0).fillna(0)
    common.heat_map(
        axes, fractions, annot=matrix if named else None, fmt="d", vmin=0, vmax=1, cmap=COLOURS,
        square=True, linewidths=0.5 if named else 0, xticklabels=names, yticklabels=names,
        annot_kws={"fontsize": 8}, rasterized=not named,
    )  # fmt: skip
    if named:
        style = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(axes.get_xticks(), names, **style)
    axes.set(xlabel="predicted class", ylabel="true class")
    return f"runs: {len(frame[['repeat', 'session']].drop_duplicates())}"


def select_table(tables: common.Tables, name: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of a table of classes for a figure, with labels, and notes for the figure."""
    shown, notes = common.select(tables, MOST)
    without = classes_without_tests(shown["pooled"])
    untested_note = [f"No test rows, hence no scores: {', '.join(without)}."] * bool(without)
    return in_order(add_labels(shown[name], shown["runs"])), [*untested_note, *notes]


def class_name(name: str) -> str:
    """Break the name of a class into lines that fit alongside a heat map."""
    return wrap(name, 1.4, LABEL)


def panels(
    frame: pd.DataFrame,
    size: tuple[float, float],
    panel: Callable[[Axes, pd.DataFrame], str],
    colours: ScalarMappable,
    **colour_bar,
) -> Figure:
    """Draw a panel for each configuration of a table of classes, with one colour bar.

    Parameters
    ----------
    frame : the table of `select_table`.
    size : width and height of a panel with its title, in inches.
    panel : draws the rows of a configuration, and returns a text on their number of runs.
    """
    groups = list(frame.groupby(list(CONFIGURATION), sort=False))
    columns = min(3, len(groups))
    width, height = size
    figure = common.new(max(7.0, width * columns + 1.0), height * -(-len(groups) // columns))
    several = len(common.panels(frame)) > 1
    grid = common.grid(figure, len(groups), columns)
    for axes, (_, rows) in zip(grid, groups, strict=True):
        count_of_runs = panel(axes, rows)
        axes.tick_params(axis="y", rotation=0)
        where = f"{describe_data(rows)}\n{rows['workload'].iloc[0]}, " if several else ""
        heading = f"{where}{rows['label'].iloc[0]}\n{count_of_runs}"
        axes.set_title(wrap(heading, width - 1.6, PANEL_TITLE))
    figure.colorbar(colours, ax=grid, shrink=0.6, **colour_bar)
    return figure
