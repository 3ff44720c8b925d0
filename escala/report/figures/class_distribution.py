"""Draw the number of sequences of each class, at every stage of the preparation."""

from __future__ import annotations

import seaborn as sns
from matplotlib.figure import Figure

from escala.report.figures.common import (
    LABEL,
    PANEL_TITLE,
    Tables,
    empty,
    grid,
    legend_of,
    name_height,
    new,
    note,
    ordered_palette,
    title,
    wrap,
)
from escala.report.figures.looks import describe, described
from escala.report.tables.data import STAGES

CATEGORY = "Data"
NEEDS = "classes"
WHAT = "Class distribution"
STAGE_NAMES = {
    "records": "read",
    "kept": "without duplicates",
    "train": "training",
    "balanced": "training, oversampled",
    "test": "test",
}


def draw(tables: Tables) -> Figure:
    """Draw a bar per class and stage, a panel per dataset, of its first split."""
    classes = tables["classes"]
    if classes.empty:
        return empty(WHAT, described(tables["runs"]), "No dataset has rows of classes.")
    datasets = list(classes.groupby("dataset", sort=False))
    columns = min(len(datasets), 2)
    shown = {name: wrap(name, 1.4, LABEL) for name in classes["class"].unique()}
    row = max(0.75, name_height(shown.values()) + 0.1)
    height = max(2.0, row * max(frame["class"].nunique() for _, frame in datasets)) + 0.9
    figure = new(5.0 * columns + 2.5, height * -(-len(datasets) // columns))
    names = list(STAGE_NAMES.values())
    for axes, (dataset, frame) in zip(grid(figure, len(datasets), columns), datasets, strict=True):
        first = frame[frame["split_seed"] == frame["split_seed"].iloc[0]]
        long = first.melt(["class", "provenance", "leaky"], list(STAGES), "stage", "rows")
        sns.barplot(
            long.replace({"stage": STAGE_NAMES, "class": shown}), x="rows", y="class",
            hue="stage", hue_order=names, palette=ordered_palette(names), ax=axes,
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
    legend_of(figure, figure.axes, "stage")
    title(figure, WHAT, classes)
    seeds = classes.groupby("dataset", sort=False)["split_seed"].unique()
    note(figure, [_split_note(dataset, split) for dataset, split in seeds.items()])
    return figure


def _split_note(dataset: str, seeds: list[int]) -> str:
    more = f"; {len(seeds) - 1} more in classes.csv" if len(seeds) > 1 else ""
    return f"{dataset}: training and test rows of the split with seed {seeds[0]}{more}."
