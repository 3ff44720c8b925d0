"""Draw scores by the kind of split: random, by cluster, by lineage, with the baselines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from escala.report.figures import common
from escala.report.figures.common import LABEL, NOTE, PANEL_TITLE, describe_data, height_of, wrap
from escala.report.tables.views import is_main_reference

CATEGORY = "Quality"
CAPTION = (
    "Scores of each workload by dataset, and so by the kind of split: on all test rows, and on "
    "test rows without a near-duplicate among the training genomes. Points are runs of the main "
    "reference, if it was measured, and of workloads that are fitted at once. Each run has the "
    "split of its repeat. Bars are medians of the points. The numbers are in the table "
    "``leakage``."
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
    workloads, by_dataset = list(shown["workload"].unique()), shown.groupby("dataset", sort=False)
    names = [
        wrap(f"{name}\n(split: {rows['split_by'].iloc[0]})", 1.6, LABEL)
        for name, rows in by_dataset
    ]
    row_height = max(0.4, 0.25 * len(workloads), height_of(names)) + 0.1
    figure = common.new(9, row_height * len(names) + 1.1)
    figure.get_layout_engine().set(wspace=0.05)
    grid = figure.subplots(1, len(PANELS), sharey=True)
    colours, shapes = common.palette(workloads), common.markers(workloads)
    offsets = dict(zip(workloads, np.linspace(-0.4, 0.4, len(workloads) + 2)[1:-1], strict=True))
    for axes, (column, heading) in zip(grid, PANELS.items(), strict=True):
        for place, (_, rows) in enumerate(by_dataset):
            known = rows.dropna(subset=[column])
            for workload, values in known.groupby("workload", sort=False)[column]:
                y, colour = place + offsets[workload], colours[workload]
                axes.scatter(
                    values.astype(float), np.full(len(values), y), s=18, color=colour,
                    marker=shapes[workload], label=workload,
                )  # fmt: skip
                axes.vlines(values.median(), y - 0.15, y + 0.15, color=colour, linewidth=2)
            if known.empty:
                style = {"va": "center", "style": "italic", "fontsize": NOTE}
                axes.text(0.03, place, "unavailable (0 rows)", **style)
        axes.set(xlim=(-0.03, 1.03), xticks=(0, 0.5, 1), xlabel="score")
        axes.set_title(wrap(heading, 1.7, PANEL_TITLE))
    grid[0].set_yticks(range(len(names)), names)
    grid[0].set_ylim(len(names) - 0.5, -0.5)
    common.legend_of(figure, grid, "workload")
    common.finish(
        figure, [WHAT, describe_data(shown)], [*_notes(shown), *common.gaps(tables["runs"])]
    )
    return figure


def _notes(shown: pd.DataFrame) -> Iterator[str]:
    """Yield notes on near-duplicates, and on classes that cannot be separated."""
    by_dataset = shown.groupby("dataset", sort=False)
    similar = by_dataset["similar_fraction"].median().items()
    fractions = "; ".join(f"{name} {100 * fraction:.0f} %" for name, fraction in similar)
    limits = ", ".join(f"{limit:g}" for limit in sorted(shown["similarity"].unique()))
    names = shown[["strategy", "layout"]].drop_duplicates().to_numpy()
    yield (
        f"Points: runs of {' and '.join(map(' '.join, names))}. Test rows with a near-duplicate in "
        f"training (at least {limits} of their k-mers in common): {fractions}."
    )
    parts = [
        f"{dataset}: {', '.join(sorted(set(';'.join(classes.dropna()).split(';'))))}"
        for dataset, classes in by_dataset["not_separable"]
        if classes.notna().any()
    ]
    if parts:
        yield f"Not separable, hence trained on and not scored: {'; '.join(parts)}."
