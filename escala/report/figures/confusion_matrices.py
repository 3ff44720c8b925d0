"""Draw the confusion matrices of every configuration, pooled over repeats."""

from __future__ import annotations

from functools import partial

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from escala.report.figures import common, heat_maps
from escala.report.figures.looks import described
from escala.report.figures.text import height_of

CATEGORY = "Quality"
CAPTION = (
    "How the test rows of each class were classified: their numbers, added up over repeats. "
    "Colours are fractions of the true class."
)
NEEDS = "classes"
WHAT = "Confusion matrices, pooled over repeats"
COLOURS = "Blues"
# Of a matrix of many classes, in inches.
_SIDE_OF_MANY = 8.0


def draw(tables: common.Tables) -> Figure:
    """Draw a panel per configuration: counts, coloured by the fraction of the true class."""
    confusion, notes = heat_maps.table_of(tables, "confusion")
    if confusion.empty:
        return common.without_data(WHAT, tables, heat_maps.LACKING)
    classes = confusion.groupby(["dataset", "workload"])["true_class"].nunique().max()
    # Names below the columns are rotated, so their lines take more than their height.
    lines = height_of(map(heat_maps.class_name, confusion["true_class"].unique()))
    side = max(2.6, max(0.58, 1.5 * lines) * classes)
    if are_many := classes > heat_maps.MOST_NAMED:
        side = _SIDE_OF_MANY
        notes = [f"Numbers and names of {classes} classes are in the table confusion.", *notes]
    panel = partial(_panel, named=not are_many)
    figure = heat_maps.panels(
        confusion, (side + 1.2, side + 1.8), panel, ScalarMappable(Normalize(0, 1), COLOURS),
        label="fraction of the true class",
    )  # fmt: skip
    common.finish(figure, [WHAT, described(confusion)], notes)
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, named: bool) -> str:
    classes = list(frame["true_class"].unique())
    names = list(map(heat_maps.class_name, classes)) if named else []
    matrix = frame.pivot_table(
        index="true_class", columns="predicted_class", values="rows", aggfunc="sum"
    ).loc[classes, classes].astype(int)  # fmt: skip
    sns.heatmap(
        matrix.div(matrix.sum(axis=1), axis=0).fillna(0), annot=matrix if named else None, fmt="d",
        vmin=0, vmax=1, cmap=COLOURS, cbar=False, square=True, linewidths=0.5 if named else 0,
        xticklabels=names, yticklabels=names, ax=axes, annot_kws={"fontsize": 8},
        rasterized=not named,
    )  # fmt: skip
    if named:
        style = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(axes.get_xticks(), names, **style)
    axes.set(xlabel="predicted class", ylabel="true class")
    return f"runs: {len(frame[['repeat', 'session']].drop_duplicates())}"
