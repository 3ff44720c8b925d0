"""Draw speed-up and efficiency of configurations against the references of the experiment."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.core.readable import counted
from escala.record.comparable import CONFIGURATION
from escala.report.figures.common import (
    NAME_INCHES,
    PANEL_TITLE,
    Tables,
    cut_short,
    empty,
    gaps,
    left_out,
    name_height,
    new,
    not_all,
    note,
    nothing_trained_by_steps,
    panel_title,
    panels,
    reference_name,
    title,
    wrap,
    wrapped_names,
)
from escala.report.figures.looks import described, in_order, strategy_look
from escala.report.tables.views import fastest, labelled, trained_by_steps

CATEGORY = "Time"
NEEDS = "comparisons"
WHAT = "Speed-up and efficiency"
# The width of a panel and the height of its axis, in inches.
_PANEL, _AXIS = 2.1, 1.0
# The ends of the horizontal axes, as multiples of what lies farthest. A value near 0 needs room.
_ENDS = -0.12, 1.15


def draw(tables: Tables) -> Figure:
    """Draw a row per configuration: speed-up and efficiency, with intervals and ideal values.

    Each reference has a row of panels, the main one first.
    """
    of_steps = trained_by_steps(tables)
    shown = fastest(of_steps)
    runs, speedup = shown["runs"], shown["speedup"]
    if runs.empty:
        return nothing_trained_by_steps(WHAT, tables)
    if not (speedup["kind"] != "unavailable").any():
        return empty(WHAT, described(runs), _why_nothing(shown))
    speedup = labelled(speedup, runs)
    measured = speedup[speedup["kind"] != "unavailable"]
    parts = [
        (_heading(workload, frame, measured), in_order(frame))
        for (_, workload), of_data in panels(measured)
        for _, frame in of_data.groupby("reference")
    ]
    row = max(0.42, name_height(_names(measured)) + 0.15)
    heights = [
        row * len(frame) + name_height([heading], PANEL_TITLE) + _AXIS for heading, frame in parts
    ]
    figure = new(2 * _PANEL + NAME_INCHES, sum(heights))
    grid = figure.subplots(len(parts), 2, squeeze=False, sharey="row", height_ratios=heights)
    for (left, right), (heading, frame) in zip(grid, parts, strict=True):
        for axes, value in ((left, "speedup"), (right, "efficiency")):
            _panel(axes, frame, value)
            axes.set_title(heading)
        left.set_yticks(range(len(frame)), _names(frame))
        left.set(xlabel="speed-up\n(time of the\nreference / time)")
        left.set(ylim=(len(frame) - 0.4, -0.7))
        right.set(xlabel="efficiency\n(speed-up / (cores /\ncores of the reference))")
    title(figure, WHAT, speedup)
    note(
        figure,
        [
            f"Reference: {_main_references(speedup)}. Points are estimates over pairs of runs of "
            "the same session and repeat. Bars are 95 % intervals from "
            f"{VALUES_FOR_INTERVAL} pairs on, and the range for fewer. The dashed line is the "
            "ideal: the speed-up equals the cores divided by the cores of the reference, and the "
            "efficiency is 1.",
            *_missing(shown),
            *left_out(tables),
            *not_all(of_steps, shown),
            *gaps(runs),
        ],
    )
    return figure


def _heading(workload: str, frame: pd.DataFrame, measured: pd.DataFrame) -> str:
    """Return what tells a panel from the others: its data, and its reference if it has several."""
    parts = [panel_title(workload, frame, several=len(panels(measured)) > 1)]
    if measured["reference"].nunique() > 1:
        parts.append(f"against {reference_name(frame)}")
    return wrap(", ".join(filter(None, parts)), _PANEL - 0.1, PANEL_TITLE)


def _panel(axes: Axes, frame: pd.DataFrame, value: str) -> None:
    """Draw a column of the table (`value`), a row per configuration."""
    farthest = 0.0
    for place, row in enumerate(frame.itertuples()):
        look = strategy_look(row.strategy)
        middle, low, high = (getattr(row, f"{value}{end}") for end in ("", "_low", "_high"))
        ideal = row.cores / row.reference_cores if value == "speedup" else 1.0
        axes.vlines(ideal, place - 0.3, place + 0.3, color="0.4", linestyle="--", linewidth=1)
        ends = [[0], [0]] if pd.isna(low) or pd.isna(high) else [[middle - low], [high - middle]]
        axes.errorbar(
            [middle], [place], xerr=ends, color=look.colour, marker=look.marker,
            fillstyle=look.fill, markersize=6, linestyle="", capsize=3, linewidth=1.5,
            label=row.label,
        )  # fmt: skip
        axes.annotate(
            f"{middle:.2f}", (middle, place), (0, 6), textcoords="offset points", ha="center",
            fontsize=8,
        )  # fmt: skip
        farthest = max(farthest, ideal, middle if pd.isna(high) else high)
    axes.set_xlim(*(end * farthest for end in _ENDS))
    axes.locator_params(axis="x", nbins=4)
    axes.grid(axis="y", visible=False)


def _names(frame: pd.DataFrame) -> list[str]:
    ranks = [counted(ranks, "rank") for ranks in frame["ranks"]]
    return wrapped_names(frame["label"] + "\n" + ranks + cut_short(frame))


def _main_references(speedup: pd.DataFrame) -> str:
    """Return the labels of the main references, joined by commas."""
    return ", ".join(speedup.loc[speedup["reference"] == 1, "reference_label"].unique())


def _missing(tables: Tables) -> list[str]:
    """Return notes on the configurations that ran but have no ratio."""
    ran = tables["configurations"][lambda frame: frame["kind"] != "unavailable"]
    missing = tables["speedup"][lambda frame: frame["kind"] == "unavailable"]
    missing = labelled(
        missing.merge(ran[list(CONFIGURATION)], on=list(CONFIGURATION)), tables["runs"]
    )
    return [
        f"Unavailable: {row.label} against {row.reference_label}: {row.reason}."
        for row in missing.itertuples()
    ]


def _why_nothing(tables: Tables) -> str:
    """Return why no configuration has a ratio to a reference."""
    speedup = labelled(tables["speedup"], tables["runs"])
    if speedup.empty:
        return "The experiment has no configuration to compare with its reference."
    reasons = "; ".join(
        f"{row.label} against {row.reference_label}: {row.reason}" for row in speedup.itertuples()
    )
    return f"No ratio is available. {reasons}."
