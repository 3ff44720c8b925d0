"""Draw scores by the kind of split: random, by cluster, by lineage, with the baselines."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.report.figures import common
from escala.report.figures.common import LABEL, NOTE, PANEL_TITLE, height_of, wrap
from escala.report.figures.looks import described
from escala.report.tables.views import is_main_reference

CATEGORY = "Quality"
CAPTION = (
    "Scores by dataset, and so by the kind of split, of each workload: on all test rows, and on "
    "those without a near-duplicate among the training genomes. Runs, each on the split of its "
    "repeat, are those of the main reference, where it was measured, and of workloads that are "
    "fitted at once. Bars are their median. The numbers are in the table ``leakage``."
)
NEEDS = "classes"
WHAT = "Scores by the kind of split"
PANELS = {
    "accuracy": "accuracy, all test rows",
    "macro_f1": "macro F1, classes with test rows",
    "rest_accuracy": "accuracy, test rows without a near-duplicate in training",
}


def draw(tables: common.Tables) -> Figure:
    """Draw every run as a point and the median as a bar, a row per dataset and workload."""
    leakage = tables["leakage"]
    if leakage.empty:
        return common.without_data(WHAT, tables, "test rows that are audited for leakage")
    main = is_main_reference(leakage, tables["configurations"])
    shown = leakage[main] if main.any() else leakage
    datasets, workloads = list(shown["dataset"].unique()), list(shown["workload"].unique())
    split_by = shown.groupby("dataset")["split_by"].first()
    names = [wrap(f"{name}\n(split: {split_by[name]})", 1.6, LABEL) for name in datasets]
    row = max(0.4, 0.25 * len(workloads), height_of(names)) + 0.1
    figure = common.new(9, row * len(datasets) + 1.1)
    figure.get_layout_engine().set(wspace=0.05)
    grid = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (column, heading) in zip(grid, PANELS.items(), strict=True):
        _panel(axes, shown, column, datasets, workloads)
        axes.set_title(wrap(heading, 1.7, PANEL_TITLE))
        axes.set_xlabel("score")
    grid[0].set_yticks(range(len(datasets)), names)
    grid[0].set_ylim(len(datasets) - 0.5, -0.5)
    common.legend_of(figure, grid, "workload")
    notes = [_near_duplicates(shown), *_not_separable(shown), *common.gaps(tables["runs"])]
    common.finish(figure, [WHAT, described(shown)], notes)
    return figure


def _panel(
    axes: Axes, frame: pd.DataFrame, column: str, datasets: list[str], workloads: list[str]
) -> None:
    colours, shapes = common.palette(workloads), common.markers(workloads)
    offsets = np.linspace(-0.4, 0.4, len(workloads) + 2)[1:-1]
    for place, dataset in enumerate(datasets):
        rows = frame[frame["dataset"] == dataset]
        for workload, offset in zip(workloads, offsets, strict=True):
            values = rows.loc[rows["workload"] == workload, column].dropna()
            if values.empty:
                continue
            colour, y = colours[workload], place + offset
            axes.scatter(
                values.astype(float), np.full(len(values), y), s=18, alpha=0.6, color=colour,
                marker=shapes[workload], label=workload,
            )  # fmt: skip
            axes.vlines(values.median(), y - 0.15, y + 0.15, color=colour, linewidth=2)
        if rows[column].isna().all():
            style = {"va": "center", "style": "italic", "fontsize": NOTE}
            axes.text(0.03, place, "unavailable (0 rows)", **style)
    axes.set(xlim=(-0.03, 1.03), xticks=(0, 0.5, 1))


def _near_duplicates(frame: pd.DataFrame) -> str:
    fractions = "; ".join(
        f"{dataset} {100 * fraction:.0f} %"
        for dataset, fraction in frame.groupby("dataset", sort=False)["similar_fraction"]
        .median()
        .items()
    )
    limits = ", ".join(f"{limit:g}" for limit in sorted(frame["similarity"].unique()))
    runs = " and ".join(
        " ".join(names) for names in frame[["strategy", "layout"]].drop_duplicates().to_numpy()
    )
    return (
        f"Points: runs of {runs}. Test rows with a near-duplicate in training (at least {limits} "
        f"of their k-mers in common): {fractions}."
    )


def _not_separable(frame: pd.DataFrame) -> list[str]:
    parts = [
        f"{dataset}: {', '.join(sorted(set(';'.join(group.dropna()).split(';'))))}"
        for dataset, group in frame.groupby("dataset", sort=False)["not_separable"]
        if group.notna().any()
    ]
    return [f"Not separable, hence trained on and not scored: {'; '.join(parts)}."] * bool(parts)
