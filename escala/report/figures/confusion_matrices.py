"""Draw the confusion matrices of every configuration, pooled over repeats."""

from __future__ import annotations

import seaborn as sns
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from escala.record.comparable import CONFIGURATION
from escala.report.figures.common import (
    LABEL,
    PANEL_TITLE,
    Tables,
    gaps,
    grid,
    name_height,
    new,
    not_all,
    not_scored,
    note,
    title,
    without_data,
    wrap,
)
from escala.report.figures.looks import described, in_order
from escala.report.tables.views import fastest, labelled

CATEGORY = "Quality"
NEEDS = "classes"
WHAT = "Confusion matrices, pooled over repeats"
COLOURS = "Blues"
#: Panels of a dataset and workload.
MOST = 12


def draw(tables: Tables) -> Figure:
    """Draw a panel per configuration: counts, coloured by the share of the true class."""
    everything, tables = tables, fastest(tables, MOST)
    confusion = in_order(labelled(tables["confusion"], tables["runs"]))
    if confusion.empty:
        return without_data(WHAT, tables, "scores of classes")
    groups = list(confusion.groupby(list(CONFIGURATION), sort=False))
    written = {name: wrap(name, 1.4, LABEL) for name in confusion["true_class"].unique()}
    # Names below the columns are rotated, so their lines take more than their height.
    cell = max(0.58, 1.5 * name_height(written.values()))
    side = max(2.6, cell * max(frame["true_class"].nunique() for _, frame in groups))
    columns = min(3, len(groups))
    figure = new(max(7.0, (side + 1.2) * columns + 1.0), (side + 1.8) * -(-len(groups) // columns))
    several = confusion[["dataset", "workload"]].drop_duplicates().shape[0] > 1
    axes_list = grid(figure, len(groups), columns)
    for axes, (_, frame) in zip(axes_list, groups, strict=True):
        classes = list(frame["true_class"].unique())
        names = [written[name] for name in classes]
        matrix = frame.pivot_table(
            index="true_class", columns="predicted_class", values="rows", aggfunc="sum"
        ).loc[classes, classes].astype(int)  # fmt: skip
        shares = matrix.div(matrix.sum(axis=1), axis=0).fillna(0)
        sns.heatmap(
            shares, annot=matrix, fmt="d", vmin=0, vmax=1, cmap=COLOURS, cbar=False, square=True,
            linewidths=0.5, xticklabels=names, yticklabels=names, ax=axes,
            annot_kws={"fontsize": 8},
        )  # fmt: skip
        axes.set_xticks(axes.get_xticks(), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.tick_params(axis="y", rotation=0)
        runs = frame[["repeat", "session"]].drop_duplicates().shape[0]
        where = f"{described(frame)}\n{frame['workload'].iloc[0]}, " if several else ""
        heading = f"{where}{frame['label'].iloc[0]}\nruns: {runs}"
        axes.set_title(wrap(heading, side, PANEL_TITLE))
        axes.set(xlabel="predicted class", ylabel="true class")
    figure.colorbar(
        ScalarMappable(Normalize(0, 1), COLOURS), ax=axes_list, shrink=0.6,
        label="share of the true class",
    )  # fmt: skip
    title(figure, WHAT, confusion)
    note(
        figure,
        [
            "Numbers are test rows.",
            *not_scored(tables),
            *not_all(everything, tables),
            *gaps(tables["runs"]),
        ],
    )
    return figure
