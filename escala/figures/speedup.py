"""Speed-up and efficiency of parallel configurations against one process."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.explain.tables import BASELINE, CONFIGURATION, by_gradient, labelled
from escala.figures.common import (
    Tables,
    described,
    empty,
    gaps,
    left_out,
    legend_of,
    markers,
    new,
    note,
    nothing_by_epochs,
    palette,
    panel_title,
    panels,
    title,
)

WHAT = "Speed-up and efficiency against one process"


def draw(tables: Tables) -> Figure:
    """Draw both by layout, with 95 % intervals and, dashed, the ideal."""
    everything, tables = tables, by_gradient(tables)
    if tables["runs"].empty:
        return nothing_by_epochs(WHAT, everything)
    speedup = tables["speedup"]
    if not (speedup["kind"] != "unavailable").any():
        return empty(WHAT, described(tables["runs"]), _why_nothing(tables))
    varying = [key for key in ("variant", "network") if speedup[key].nunique() > 1]
    speedup = speedup.assign(series=speedup[["strategy", *varying]].agg(" ".join, axis=1))
    names = list(speedup.loc[speedup["kind"] != "unavailable", "series"].unique())
    parts = panels(speedup)
    most = max(len(_layouts(frame)) for _, frame in parts)
    figure = new(max(9.5, 3 + 2 * most * (0.4 + 0.36 * len(names))), 3.4 * len(parts) + 1.0)
    grid = figure.subplots(len(parts), 2, squeeze=False)
    for (left, right), ((_, workload), frame) in zip(grid, parts, strict=True):
        for axes, value in ((left, "speedup"), (right, "efficiency")):
            _panel(axes, frame, value, names)
            axes.set_title(panel_title(workload, frame, len(parts) > 1))
        left.set(ylabel="speed-up\n(time of 1x1 / time)")
        right.set(ylabel="efficiency\n(speed-up / ranks)")
    legend_of(figure, grid.flat, "strategy")
    title(figure, WHAT, speedup)
    note(
        figure,
        [
            "Median of the ratios of runs of the same session and repeat; bars: 95 % "
            "interval, which is the range for fewer than nine pairs; dashed: ideal.",
            *_missing(tables),
            *left_out(everything),
            *gaps(tables["runs"]),
        ],
    )
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, value: str, names: list[str]) -> None:
    layouts = _layouts(frame)
    colours, shapes = palette(names), markers(names)
    for at, ranks in enumerate(layouts.values()):
        ideal = ranks if value == "speedup" else 1
        axes.hlines(ideal, at - 0.45, at + 0.45, color="0.4", linestyle="--", linewidth=1)
    measured = frame[frame["kind"] != "unavailable"]
    for name, group in measured.groupby("series", sort=False):
        shift = 0.8 * ((names.index(name) + 0.5) / len(names) - 0.5)
        x = group["layout"].map(list(layouts).index).astype(float) + shift
        y, low, high = (group[f"{value}{end}"].astype(float) for end in ("", "_low", "_high"))
        below, above = (y - low).fillna(0), (high - y).fillna(0)
        axes.errorbar(
            x,
            y,
            yerr=np.array([below, above]),
            color=colours[name],
            marker=shapes[name],
            markersize=6,
            linestyle="",
            capsize=3,
            linewidth=1.5,
            label=name,
        )
        for at, bottom, height in zip(x, y - below, y, strict=True):
            axes.annotate(
                f"{height:.2f}",
                (at, bottom),
                (0, -12),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
    axes.set_xticks(
        range(len(layouts)),
        [f"{layout}\n{ranks} rank{'s' * (ranks > 1)}" for layout, ranks in layouts.items()],
    )
    axes.set(xlabel="layout (nodes x processes)", xlim=(-0.5, len(layouts) - 0.5))
    axes.grid(axis="x", visible=False)
    axes.set_ylim(bottom=0)


def _layouts(frame: pd.DataFrame) -> dict[str, int]:
    """Return the ranks of every layout, the baseline's first, by their number."""
    layouts = dict(zip(frame["layout"], map(int, frame["ranks"]), strict=True))
    return dict(sorted({BASELINE[1]: 1, **layouts}.items(), key=lambda item: (item[1], item[0])))


def _missing(tables: Tables) -> list[str]:
    """Say which configurations ran, and still have no ratio."""
    ran = tables["configurations"][lambda frame: frame["kind"] != "unavailable"]
    missing = tables["speedup"][lambda frame: frame["kind"] == "unavailable"]
    missing = labelled(
        missing.merge(ran[list(CONFIGURATION)], on=list(CONFIGURATION)), tables["runs"]
    )
    return [f"Unavailable: {row.label}: {row.reason}." for row in missing.itertuples()]


def _why_nothing(tables: Tables) -> str:
    speedup = labelled(tables["speedup"], tables["runs"])
    if speedup.empty:
        return "The experiment has no configuration to compare with one process."
    reasons = "; ".join(f"{row.label}: {row.reason}" for row in speedup.itertuples())
    return f"No ratio is available. {reasons}."
