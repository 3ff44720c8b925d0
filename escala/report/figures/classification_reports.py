"""Draw precision, recall and F1 of every class and configuration, pooled over splits."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from escala.report.figures import common, confusion_matrices
from escala.report.figures.common import describe_data, height_of

CATEGORY = "Quality"
CAPTION = (
    "Precision, recall and F1 score of each class, pooled over runs and splits, with the number of "
    "test rows, and the averages over classes. The recall of the weighted average is the accuracy. "
    "A blank cell has no prediction to count, and counts as 0. The 95 % intervals of precision and "
    "recall are in the table ``pooled``. The intervals cover other test rows, but not other seeds."
)
NEEDS = "classes"
WHAT = "Classification reports, pooled over runs and splits"
SCORES = ["precision", "recall", "f1"]
COLOURS = "cividis"
#: All scores below share a colour. A useless model would otherwise make all others look alike.
DARKEST = 0.5
# Width of a panel, in inches.
_PANEL = 4.0


def draw(tables: common.Tables) -> Figure:
    """Draw a heat map per configuration: a row per class, its test rows alongside its name.

    The averages of a classification report follow the classes.
    """
    pooled, notes = confusion_matrices.select_table(tables, "pooled")
    if pooled.empty:
        return common.without_data(WHAT, tables, confusion_matrices.MISSING)
    row_height = max(0.32, height_of(map(_name, pooled["class"], pooled["actual"])) + 0.05)
    classes = pooled.groupby(["dataset", "workload"])["class"].nunique().max()
    lowest = np.floor(20 * pooled[SCORES].min().min()) / 20
    darkest = float(np.clip(lowest, DARKEST, 0.95))

    def panel(axes: Axes, frame: pd.DataFrame) -> str:
        by_class = frame.set_index("class")[[*SCORES, "actual"]].astype(float)
        # Averages are over the classes that have test rows.
        tested = by_class[by_class["actual"] > 0].fillna(0)
        scores, rows = tested[SCORES], tested["actual"]
        averages = {
            "macro average": scores.mean(),
            "weighted average": scores.mul(rows, axis=0).sum() / rows.sum(),
        }
        report = pd.concat([by_class, pd.DataFrame(averages).T.assign(actual=rows.sum())])
        common.heat_map(
            axes, report[SCORES].astype(float), annot=True, fmt=".3f", vmin=darkest, vmax=1,
            cmap=COLOURS, linewidths=0.5, xticklabels=SCORES,
            annot_kws={"fontsize": 8}, yticklabels=list(map(_name, report.index, report["actual"])),
        )  # fmt: skip
        axes.axhline(len(frame), color="white", linewidth=3)
        axes.set(xlabel="", ylabel="class (test rows)")
        return "runs: {}, splits: {}".format(*frame[["runs", "splits"]].iloc[0])

    figure = confusion_matrices.panels(
        pooled, (_PANEL, row_height * (classes + 2) + 1.1), panel,
        ScalarMappable(Normalize(darkest, 1), COLOURS), label="score",
        extend="min" if lowest < darkest else "neither",
    )  # fmt: skip
    common.finish(figure, [WHAT, describe_data(pooled)], notes)
    return figure


def _name(label: str, rows: float) -> str:
    return confusion_matrices.class_name(f"{label} ({rows:.0f})")
