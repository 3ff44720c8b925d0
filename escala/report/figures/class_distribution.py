"""Draw the number of sequences of each class, at every stage of the preparation."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from escala.report.figures import common
from escala.report.figures.common import (
    LABEL,
    PANEL_TITLE,
    describe,
    describe_data,
    height_of,
    wrap,
)

CATEGORY = "Data"
CAPTION = (
    "Sequences of each class, as read and after dropping exact duplicates. Alongside them the "
    "training rows before and after oversampling and the test rows, all of the dataset's first "
    "split."
)
NEEDS = "classes"
WHAT = "Class distribution"
MOST_SHOWN = 30
#: Columns of the table of classes, and their names.
STAGES = {
    "records": "read",
    "kept": "without duplicates",
    "train": "training",
    "balanced": "training, oversampled",
    "test": "test",
}


def draw(tables: common.Tables) -> Figure:
    """Draw a panel per dataset with its first split: a bar per class and stage."""
    classes = tables["classes"]
    if classes.empty:
        return common.empty(WHAT, describe_data(tables["runs"]), "No dataset has rows of classes.")
    stages, notes, datasets = list(STAGES.values()), [], []
    for dataset, frame in classes.groupby("dataset", sort=False):
        rows = frame.groupby("class", sort=False)[["train", "test"]].sum().sum(axis=1)
        if len(rows) > MOST_SHOWN:
            largest = rows.nlargest(MOST_SHOWN).index
            notes.append(
                f"{dataset}: the {MOST_SHOWN} of {len(rows)} classes with most rows; all are in "
                "classes.csv."
            )
            frame = frame[frame["class"].isin(largest)]
        datasets.append((dataset, frame))
    classes = pd.concat([frame for _, frame in datasets])
    columns = min(len(datasets), 2)
    shown = {name: wrap(name, 1.4, LABEL) for name in classes["class"].unique()}
    row_height = max(0.75, height_of(shown.values()) + 0.1)
    height = max(2.0, row_height * max(frame["class"].nunique() for _, frame in datasets)) + 0.9
    figure = common.new(5.0 * columns + 2.5, height * -(-len(datasets) // columns))
    panels = common.grid(figure, len(datasets), columns)
    for axes, (dataset, frame) in zip(panels, datasets, strict=True):
        seed, *more_seeds = frame["split_seed"].unique()
        first = frame[frame["split_seed"] == seed]
        long = first.melt(["class", "provenance", "leaky"], list(STAGES), "stage", "rows")
        sns.barplot(
            long.replace({"stage": STAGES, "class": shown}), x="rows", y="class", hue="stage",
            hue_order=stages, palette=common.palette_in_order(stages), errorbar=None, ax=axes,
        )  # fmt: skip
        for bars in axes.containers:
            axes.bar_label(bars, fmt="{:.0f}", padding=2, fontsize=7)
        axes.margins(x=0.12)
        axes.get_legend().remove()
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="sequences (count)", ylabel="class")
        if len(datasets) > 1:
            heading = describe(dataset, *first[["provenance", "leaky"]].iloc[0])
            axes.set_title(wrap(heading, 3.6, PANEL_TITLE))
        others = f"; {len(more_seeds)} more in classes.csv" if more_seeds else ""
        notes.append(f"{dataset}: training and test rows of the split with seed {seed}{others}.")
    common.legend_of(figure, figure.axes, "stage")
    common.finish(figure, [WHAT, describe_data(classes)], notes)
    return figure
