"""Draw speed-up and efficiency of configurations against the references of the experiment."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.core.readable import counted
from escala.record.comparable import CONFIGURATION
from escala.report.figures.common import (
    PANEL_TITLE,
    Look,
    Tables,
    described,
    empty,
    gaps,
    left_out,
    legend_of,
    looks,
    new,
    note,
    nothing_trained_by_steps,
    panel_title,
    panels,
    reference_name,
    title,
    wrap,
)
from escala.report.tables.views import labelled, trained_by_steps

CATEGORY = "Time"
WHAT = "Speed-up and efficiency"


def draw(tables: Tables) -> Figure:
    """Draw speed-up and efficiency by layout, with intervals and dashed ideal values.

    Each reference has a row of panels, the main one first.
    """
    of_steps = trained_by_steps(tables)
    runs, speedup = of_steps["runs"], of_steps["speedup"]
    if runs.empty:
        return nothing_trained_by_steps(WHAT, tables)
    if not (speedup["kind"] != "unavailable").any():
        return empty(WHAT, described(runs), _why_nothing(of_steps))
    varying = [key for key in ("variant", "network") if speedup[key].nunique() > 1]
    speedup = labelled(speedup, runs)
    speedup = speedup.assign(series=speedup[["strategy", *varying]].agg(" ".join, axis=1))
    measured = speedup[speedup["kind"] != "unavailable"]
    look_of_series = looks(measured, "series")
    data = panels(measured)
    parts = [
        (workload, frame)
        for (_, workload), of_data in data
        for _, frame in of_data.groupby("reference")
    ]
    most_layouts = max(len(_ranks_of_layouts(frame)) for _, frame in parts)
    width = max(3.4, 0.7 + most_layouts * (0.4 + 0.36 * len(look_of_series)))
    figure = new(2 * width + 1.8, 3.2 * len(parts))
    grid = figure.subplots(len(parts), 2, squeeze=False)
    for (left, right), (workload, frame) in zip(grid, parts, strict=True):
        heading = [panel_title(workload, frame, len(data) > 1)]
        if measured["reference"].nunique() > 1:
            heading.append(f"against {reference_name(frame)}")
        for axes, value in ((left, "speedup"), (right, "efficiency")):
            _panel(axes, frame, value, look_of_series)
            text = ", ".join(filter(None, heading))
            axes.set_title(wrap(text, width - 0.8, PANEL_TITLE))
        left.set(ylabel="speed-up\n(time of the reference / time)")
        right.set(ylabel="efficiency\n(speed-up / (cores /\ncores of the reference))")
    legend_of(figure, grid.flat, "strategy")
    title(figure, WHAT, speedup)
    note(
        figure,
        [
            f"Reference: {_main_references(speedup)}. Points are medians over pairs of runs of the "
            "same session and repeat. Bars are 95 % intervals from "
            f"{VALUES_FOR_INTERVAL} pairs on, and the range for fewer. The dashed line is the "
            "ideal: the speed-up equals the cores divided by the cores of the reference, and the "
            "efficiency is 1.",
            *_missing(of_steps),
            *left_out(tables),
            *gaps(runs),
        ],
    )
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, value: str, look_of_series: dict[str, Look]) -> None:
    """Draw a column of the table (`value`) by layout, the series side by side."""
    ranks_of_layouts, names = _ranks_of_layouts(frame), list(look_of_series)
    layouts, half_width = list(ranks_of_layouts), 0.4 / len(names)
    for name, look in look_of_series.items():
        group = frame[frame["series"] == name]
        if group.empty:
            continue
        shift = 0.8 * ((names.index(name) + 0.5) / len(names) - 0.5)
        x = group["layout"].map(layouts.index).astype(float) + shift
        y, low, high = (group[f"{value}{end}"].astype(float) for end in ("", "_low", "_high"))
        ideal = group["cores"] / group["reference_cores"] if value == "speedup" else 1.0 + 0 * y
        axes.hlines(ideal, x - half_width, x + half_width, color="0.4", linestyle="--", linewidth=1)
        below, above = (y - low).fillna(0), (high - y).fillna(0)
        axes.errorbar(
            x,
            y,
            yerr=np.array([below, above]),
            color=look.colour,
            marker=look.marker,
            fillstyle=look.fill,
            markersize=6,
            linestyle="",
            capsize=3,
            linewidth=1.5,
            label=name,
        )
        for position, bar_bottom, median in zip(x, y - below, y, strict=True):
            axes.annotate(
                f"{median:.2f}",
                (position, bar_bottom),
                (0, -12),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
    axes.set_xticks(
        range(len(layouts)),
        [f"{layout}\n{counted(ranks, 'rank')}" for layout, ranks in ranks_of_layouts.items()],
    )
    axes.set(xlabel="layout (nodes x processes)", xlim=(-0.5, len(layouts) - 0.5))
    axes.grid(axis="x", visible=False)
    axes.set_ylim(bottom=0)


def _ranks_of_layouts(frame: pd.DataFrame) -> dict[str, int]:
    """Return the number of ranks of each layout, fewest first."""
    ranks = dict(zip(frame["layout"], map(int, frame["ranks"]), strict=True))
    return dict(sorted(ranks.items(), key=lambda item: (item[1], item[0])))


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
