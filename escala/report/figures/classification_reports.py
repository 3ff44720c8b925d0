"""Draw precision, recall and F1 of every class and configuration, pooled over splits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
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
WHAT = "Classification reports, pooled over runs and splits"
#: Panels of a dataset and workload.
MOST = 12
SCORES = ("precision", "recall", "f1")
#: Lower scores share a colour: with those of a useless model, others would look alike.
DARKEST = 0.5
# Width of a panel, in inches.
_PANEL = 4.0


def draw(tables: Tables) -> Figure:
    """Draw a heat map per configuration: a row per class, its test rows beside its name."""
    everything, tables = tables, fastest(tables, MOST)
    pooled = in_order(labelled(tables["pooled"], tables["runs"]))
    if pooled.empty:
        return without_data(WHAT, tables, "scores of classes")
    groups = list(pooled.groupby(list(CONFIGURATION), sort=False))
    names = [_name(row["class"], row["actual"]) for _, row in pooled.iterrows()]
    row = max(0.32, name_height(names) + 0.05)
    height = row * (max(len(frame) for _, frame in groups) + 2)
    columns = min(3, len(groups))
    figure = new(max(7.0, _PANEL * columns + 1.0), (height + 1.1) * -(-len(groups) // columns))
    several = pooled[["dataset", "workload"]].drop_duplicates().shape[0] > 1
    lowest = np.floor(20 * pooled[list(SCORES)].min().min()) / 20
    darkest = np.clip(lowest, DARKEST, 0.95)
    axes_list = grid(figure, len(groups), columns)
    for axes, (_, frame) in zip(axes_list, groups, strict=True):
        report = _report(frame)
        sns.heatmap(
            report[list(SCORES)].astype(float), annot=True, fmt=".3f", vmin=darkest,
            vmax=1, cmap="cividis", cbar=False, linewidths=0.5, ax=axes, xticklabels=SCORES,
            annot_kws={"fontsize": 8},
            yticklabels=[_name(row.Index, row.actual) for row in report.itertuples()],
        )  # fmt: skip
        axes.axhline(len(frame), color="white", linewidth=3)
        axes.tick_params(axis="y", rotation=0)
        runs, splits = frame[["runs", "splits"]].iloc[0]
        where = f"{described(frame)}\n{frame['workload'].iloc[0]}, " if several else ""
        heading = f"{where}{frame['label'].iloc[0]}\nruns: {runs}, splits: {splits}"
        axes.set_title(wrap(heading, _PANEL - 1.8, PANEL_TITLE))
        axes.set(xlabel="", ylabel="class (test rows)")
    figure.colorbar(
        axes.collections[0], ax=axes_list, shrink=0.6, label="score",
        extend="min" if lowest < darkest else "neither",
    )  # fmt: skip
    title(figure, WHAT, pooled)
    note(
        figure,
        [
            "The recall of the weighted average is the accuracy. A blank cell: there were no such "
            "predictions, which counts as 0. Intervals are in pooled.csv.",
            *not_scored(tables),
            *not_all(everything, tables),
            *gaps(tables["runs"]),
        ],
    )
    return figure


def _name(label: str, rows: float) -> str:
    return wrap(f"{label} ({rows:.0f})", 1.4, LABEL)


def _report(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the scores by class and their averages, in the order of a classification report.

    Averages are over the classes that have test rows.
    """
    by_class = frame.set_index("class")[[*SCORES, "actual"]].astype(float)
    tested = by_class[by_class["actual"] > 0].fillna(0)
    scores, rows = tested[list(SCORES)], tested["actual"]
    averages = {
        "macro average": scores.mean(),
        "weighted average": scores.mul(rows, axis=0).sum() / rows.sum(),
    }
    return pd.concat([by_class, pd.DataFrame(averages).T.assign(actual=rows.sum())])
