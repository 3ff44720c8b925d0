"""Draw the confusion matrices of every configuration, pooled over repeats."""

from __future__ import annotations

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


def draw(tables: common.Tables) -> Figure:
    """Draw a panel per configuration: counts, coloured by the fraction of the true class."""
    confusion, notes = heat_maps.table_of(tables, "confusion")
    if confusion.empty:
        return common.without_data(WHAT, tables, "scores of classes")
    classes = confusion.groupby(["dataset", "workload"])["true_class"].nunique().max()
    # Names below the columns are rotated, so their lines take more than their height.
    lines = height_of(map(heat_maps.class_name, confusion["true_class"].unique()))
    side = max(2.6, max(0.58, 1.5 * lines) * classes)
    figure = heat_maps.panels(
        confusion, (side + 1.2, side + 1.8), _panel, ScalarMappable(Normalize(0, 1), COLOURS),
        label="fraction of the true class",
    )  # fmt: skip
    common.finish(figure, [WHAT, described(confusion)], notes)
    return figure


def _panel(axes: Axes, frame: pd.DataFrame) -> str:
    classes = list(frame["true_class"].unique())
    names = list(map(heat_maps.class_name, classes))
    matrix = frame.pivot_table(
        index="true_class", columns="predicted_class", values="rows", aggfunc="sum"
    ).loc[classes, classes].astype(int)  # fmt: skip
    sns.heatmap(
        matrix.div(matrix.sum(axis=1), axis=0).fillna(0), annot=matrix, fmt="d", vmin=0, vmax=1,
        cmap=COLOURS, cbar=False, square=True, linewidths=0.5, xticklabels=names,
        yticklabels=names, ax=axes, annot_kws={"fontsize": 8},
    )  # fmt: skip
    axes.set_xticks(axes.get_xticks(), names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set(xlabel="predicted class", ylabel="true class")
    return f"runs: {len(frame[['repeat', 'session']].drop_duplicates())}"
