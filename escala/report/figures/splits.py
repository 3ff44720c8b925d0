"""Draw scores by the kind of split: random, by cluster, by lineage, with the baselines."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.report.figures.common import (
    LABEL,
    NOTE,
    PANEL_TITLE,
    Tables,
    gaps,
    legend_of,
    markers,
    name_height,
    new,
    note,
    palette,
    title,
    without_data,
    wrap,
)
from escala.report.tables.views import is_main_reference

CATEGORY = "Quality"
NEEDS = "classes"
WHAT = "Scores by the kind of split"
PANELS = {
    "accuracy": "accuracy, all test rows",
    "macro_f1": "macro F1, classes with test rows",
    "rest_accuracy": "accuracy, test rows without a near-duplicate in training",
}


def draw(tables: Tables) -> Figure:
    """Draw every run as a point and the median as a bar, a row per dataset and workload."""
    leakage = tables["leakage"]
    if leakage.empty:
        return without_data(WHAT, tables, "test rows that are audited for leakage")
    main = is_main_reference(leakage, tables["configurations"])
    shown = leakage[main] if main.any() else leakage
    datasets, workloads = list(shown["dataset"].unique()), list(shown["workload"].unique())
    names = [_name(shown, dataset) for dataset in datasets]
    row = max(0.4, 0.25 * len(workloads), name_height(names)) + 0.1
    figure = new(9, row * len(datasets) + 1.1)
    figure.get_layout_engine().set(wspace=0.05)
    grid = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (column, heading) in zip(grid, PANELS.items(), strict=True):
        _panel(axes, shown, column, datasets, workloads)
        axes.set_title(wrap(heading, 1.7, PANEL_TITLE))
        axes.set_xlabel("score")
    grid[0].set_yticks(range(len(datasets)), names)
    grid[0].set_ylim(len(datasets) - 0.5, -0.5)
    legend_of(figure, grid, "workload")
    title(figure, WHAT, shown)
    note(figure, [_reading(shown), *_not_separable(shown), *gaps(tables["runs"])])
    return figure


def _panel(
    axes: Axes, frame: pd.DataFrame, column: str, datasets: list[str], workloads: list[str]
) -> None:
    colours, shapes = palette(workloads), markers(workloads)
    offsets = np.linspace(-0.4, 0.4, len(workloads) + 2)[1:-1]
    for place, dataset in enumerate(datasets):
        for workload, offset in zip(workloads, offsets, strict=True):
            own = frame[(frame["dataset"] == dataset) & (frame["workload"] == workload)]
            values, y = own[column].dropna().astype(float), place + offset
            if values.empty:
                continue
            axes.scatter(
                values, np.full(len(values), y), s=18, alpha=0.6, color=colours[workload],
                marker=shapes[workload], label=workload,
            )  # fmt: skip
            axes.vlines(values.median(), y - 0.15, y + 0.15, color=colours[workload], linewidth=2)
        if frame.loc[frame["dataset"] == dataset, column].isna().all():
            axes.text(
                0.03, place, "unavailable (0 rows)", va="center", style="italic", fontsize=NOTE
            )  # fmt: skip
    axes.set(xlim=(-0.03, 1.03), xticks=(0, 0.5, 1))
    sns.despine(ax=axes)


def _name(frame: pd.DataFrame, dataset: str) -> str:
    by = frame.loc[frame["dataset"] == dataset, "split_by"].iloc[0]
    return wrap(f"{dataset}\n(split: {by})", 1.6, LABEL)


def _reading(frame: pd.DataFrame) -> str:
    shares = "; ".join(
        f"{dataset} {100 * group['similar_share'].median():.0f} %"
        for dataset, group in frame.groupby("dataset", sort=False)
    )
    limits = ", ".join(f"{limit:g}" for limit in sorted(frame["similarity"].unique()))
    runs = " and ".join(
        " ".join(pair) for pair in frame[["strategy", "layout"]].drop_duplicates().to_numpy()
    )
    return (
        f"Points: runs of {runs}, each on the split of its repeat; bars: their median. Test rows "
        f"with a near-duplicate in training (at least {limits} of their k-mers in common): "
        f"{shares}."
    )


def _not_separable(frame: pd.DataFrame) -> list[str]:
    parts = [
        f"{dataset}: {', '.join(sorted(set(';'.join(group.dropna()).split(';'))))}"
        for dataset, group in frame.groupby("dataset", sort=False)["not_separable"]
        if group.notna().any()
    ]
    return [f"Not separable, hence trained on and not scored: {'; '.join(parts)}."] * bool(parts)
