"""Scores by the kind of split: random, by cluster, by lineage, with the baselines beside."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.explain.tables import BASELINE
from escala.figures.common import (
    Tables,
    gaps,
    legend_of,
    markers,
    new,
    note,
    palette,
    title,
    without_data,
)

WHAT = "Scores by the kind of split"
PANELS = {
    "accuracy": "accuracy, all test rows",
    "macro_f1": "macro F1, classes with test rows",
    "rest_accuracy": "accuracy, test rows without\na near-duplicate in training",
}


def draw(tables: Tables) -> Figure:
    """Draw every run as a point and the median as a bar, a column per dataset and workload."""
    leakage = tables["leakage"]
    if leakage.empty:
        return without_data(WHAT, tables)
    baseline = (leakage["strategy"] == BASELINE[0]) & (leakage["layout"] == BASELINE[1])
    shown = leakage[baseline] if baseline.any() else leakage
    datasets, workloads = list(shown["dataset"].unique()), list(shown["workload"].unique())
    figure = new(3.2 + 1.6 * len(datasets) * 0.5 * len(PANELS), 4.6)
    grid = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (column, label) in zip(grid, PANELS.items(), strict=True):
        _panel(axes, shown, column, datasets, workloads)
        axes.set_title(label)
    grid[0].set_ylabel("score")
    legend_of(figure, grid, "workload")
    title(figure, WHAT, shown)
    note(figure, [_reading(shown), *_not_separable(shown), *gaps(tables["runs"])])
    return figure


def _panel(
    axes: Axes, frame: pd.DataFrame, column: str, datasets: list[str], workloads: list[str]
) -> None:
    colours, shapes = palette(workloads), markers(workloads)
    offsets = dict(zip(workloads, np.linspace(-0.25, 0.25, len(workloads) + 2)[1:-1], strict=True))
    for place, dataset in enumerate(datasets):
        for workload in workloads:
            own = frame[(frame["dataset"] == dataset) & (frame["workload"] == workload)]
            values, x = own[column].dropna().astype(float), place + offsets[workload]
            if values.empty:
                continue
            axes.scatter(
                np.full(len(values), x), values, s=18, alpha=0.6, color=colours[workload],
                marker=shapes[workload], label=workload,
            )  # fmt: skip
            axes.hlines(values.median(), x - 0.08, x + 0.08, color=colours[workload], linewidth=2)
        if frame.loc[frame["dataset"] == dataset, column].isna().all():
            axes.text(
                place, 0.03, "unavailable\n(0 rows)", ha="center", va="bottom", style="italic",
                fontsize=8,
            )  # fmt: skip
    names = [_name(frame, dataset) for dataset in datasets]
    axes.set_xticks(range(len(datasets)), names, rotation=30, ha="right", rotation_mode="anchor")
    axes.set(ylim=(-0.03, 1.03), xlim=(-0.5, len(datasets) - 0.5))
    sns.despine(ax=axes)


def _name(frame: pd.DataFrame, dataset: str) -> str:
    by = frame.loc[frame["dataset"] == dataset, "split_by"].iloc[0]
    return f"{dataset}\n(split: {by})"


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
