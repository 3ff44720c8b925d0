"""Draw a heat map of classes for each configuration; helper of figures of quality."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

from escala.analysis.comparable import CONFIGURATION
from escala.record.evaluation import MOST_CLASSES
from escala.report.figures import common
from escala.report.figures.looks import described, in_order
from escala.report.figures.text import LABEL, PANEL_TITLE, wrap
from escala.report.tables.views import labelled, untested

#: Panels of a dataset and workload.
MOST = 12
#: Classes that are named, and have a number in each cell.
MOST_NAMED = 30
LACKING = f"scores of classes, which are kept of at most {MOST_CLASSES}"


def table_of(tables: common.Tables, name: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of a table of classes that a figure shows, labelled, and its notes."""
    shown, notes = common.selected(tables, MOST)
    without = untested(shown["pooled"])
    untested_note = [f"No test rows, hence no scores: {', '.join(without)}."] * bool(without)
    return in_order(labelled(shown[name], shown["runs"])), [*untested_note, *notes]


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
    frame : rows of the table, labelled and in order.
    size : of a panel with its title, in inches.
    panel : draws the rows of a configuration and returns how many runs they are from.
    """
    groups = list(frame.groupby(list(CONFIGURATION), sort=False))
    columns = min(3, len(groups))
    width, height = size
    figure = common.new(max(7.0, width * columns + 1.0), height * -(-len(groups) // columns))
    several = len(common.panels(frame)) > 1
    grid = common.grid(figure, len(groups), columns)
    for axes, (_, rows) in zip(grid, groups, strict=True):
        counted = panel(axes, rows)
        axes.tick_params(axis="y", rotation=0)
        where = f"{described(rows)}\n{rows['workload'].iloc[0]}, " if several else ""
        heading = f"{where}{rows['label'].iloc[0]}\n{counted}"
        axes.set_title(wrap(heading, width - 1.6, PANEL_TITLE))
    figure.colorbar(colours, ax=grid, shrink=0.6, **colour_bar)
    return figure
