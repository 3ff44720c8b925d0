"""Draw speed-up and efficiency of configurations against the references of the experiment."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.analysis.comparable import CONFIGURATION
from escala.core.readable import with_noun
from escala.experiment.runs import MAIN
from escala.report.figures import common
from escala.report.figures.common import (
    NAME_INCHES,
    PANEL_TITLE,
    describe_data,
    height_of,
    in_order,
    strategy_look,
    wrap,
    wrap_names,
)
from escala.report.tables.views import add_labels

CATEGORY = "Time"
CAPTION = (
    "Speed-up is the time of a reference divided by the time of a configuration; with weak "
    "scaling, both times are for the same number of rows. Efficiency is the speed-up divided by "
    "the cores used for each core of the reference. The experiment names its references; by "
    "default the reference is one process. Points are estimates over paired runs. The two runs of "
    "a pair have the same session and repeat. Bars are intervals from five pairs on, and the "
    "range for fewer. The dashed line is the ideal: the speed-up equals the cores divided by the "
    "cores of the reference, and the efficiency is 1."
)
NEEDS = "comparisons"
WHAT = "Speed-up and efficiency"
# Inches: the width of a panel, and the height of its horizontal axis with its label.
_PANEL, _AXIS = 2.1, 1.0
# The ends of the horizontal axes, as multiples of the largest value. A value near 0 needs room.
_ENDS = -0.12, 1.15


def draw(tables: common.Tables) -> Figure:
    """Draw a row per configuration: speed-up and efficiency, with intervals and ideal values.

    Each reference has a row of panels, the main one first.
    """
    shown, notes = common.select(tables, by_steps=True)
    runs = shown["runs"]
    if runs.empty:
        return common.empty(WHAT, describe_data(tables["runs"]), " ".join(notes))
    speedup = add_labels(shown["speedup"].query("basis == 'epoch'"), runs)
    unknown = speedup["kind"] == "unavailable"
    measured = speedup[~unknown]
    if measured.empty:
        why = "The experiment has no configuration to compare with its reference."
        if len(speedup):
            why = f"No ratio is available. {'; '.join(_reasons(speedup))}."
        return common.empty(WHAT, describe_data(runs), why)
    # The heading and the rows of each pair of panels. A heading names what differs between pairs.
    parts = []
    several, references = len(common.panels(measured)) > 1, measured["reference"].nunique()
    for (_, workload), group in common.panels(measured):
        for _, frame in group.groupby("reference"):
            heading = [common.panel_title(workload, frame, several)]
            heading += [f"against {common.reference_name(frame)}"] * (references > 1)
            text = wrap(", ".join(filter(None, heading)), _PANEL - 0.1, PANEL_TITLE)
            parts.append((text, in_order(frame)))
    row_height = max(0.42, height_of(_names(measured)) + 0.15)
    heights = [
        row_height * len(frame) + height_of([heading], PANEL_TITLE) + _AXIS
        for heading, frame in parts
    ]
    figure = common.new(2 * _PANEL + NAME_INCHES, sum(heights))
    grid = figure.subplots(len(parts), 2, squeeze=False, sharey="row", height_ratios=heights)
    for (left, right), (heading, frame) in zip(grid, parts, strict=True):
        _panel(left, frame, "speedup", heading)
        _panel(right, frame, "efficiency", heading)
        left.set_yticks(range(len(frame)), _names(frame))
        left.set(xlabel="speed-up\n(time of the\nreference / time)")
        left.set(ylim=(len(frame) - 0.4, -0.7))
        right.set(xlabel="efficiency\n(speed-up / (cores /\ncores of the reference))")
    main = ", ".join(speedup.loc[speedup["reference"] == MAIN, "reference_label"].unique())
    # Notes give the reason for each configuration that ran and has no ratio.
    ran = shown["configurations"][lambda frame: frame["kind"] != "unavailable"]
    missing = _reasons(speedup[unknown].merge(ran[list(CONFIGURATION)]))
    notes = [f"Reference: {main}.", *(f"Unavailable: {reason}." for reason in missing), *notes]
    common.finish(figure, [WHAT, describe_data(speedup)], notes)
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, value: str, heading: str) -> None:
    """Draw a column of the table (`value`), a row per configuration."""
    farthest = 0.0
    for place, row in enumerate(frame.itertuples()):
        look = strategy_look(row.strategy)
        middle, low, high = (getattr(row, f"{value}{end}") for end in ("", "_low", "_high"))
        ideal = row.cores / row.reference_cores if value == "speedup" else 1.0
        axes.vlines(ideal, place - 0.3, place + 0.3, color="0.4", linestyle="--", linewidth=1)
        axes.errorbar(
            [middle], [place], xerr=common.error_bars(middle, low, high), color=look.colour,
            marker=look.marker, fillstyle=look.fill, markersize=6, linestyle="", capsize=3,
            linewidth=1.5, label=row.label,
        )  # fmt: skip
        axes.annotate(
            f"{middle:.2f}", (middle, place), (0, 6), textcoords="offset points", ha="center",
            fontsize=8,
        )  # fmt: skip
        farthest = max(farthest, ideal, middle if pd.isna(high) else high)
    axes.set_title(heading)
    axes.set_xlim(*(end * farthest for end in _ENDS))
    axes.locator_params(axis="x", nbins=4)
    axes.grid(axis="y", visible=False)


def _names(frame: pd.DataFrame) -> list[str]:
    """Return the label of each row in lines, with its ranks, and whether it is estimated."""
    ranks = [with_noun(ranks, "rank") for ranks in frame["ranks"]]
    estimated = (frame["kind"] == "estimated").map({True: "\n(estimated)", False: ""})
    return wrap_names(frame["label"] + "\n" + ranks + estimated)


def _reasons(rows: pd.DataFrame) -> list[str]:
    """Return why each row has no ratio."""
    return [f"{row.label} against {row.reference_label}: {row.reason}" for row in rows.itertuples()]
