"""Draw speed-up and efficiency of configurations against the references of the experiment."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
    nothing_by_epochs,
    panel_title,
    panels,
    title,
    wrap,
)
from escala.report.tables.views import by_gradient, labelled

CATEGORY = "Time"
WHAT = "Speed-up and efficiency"


def draw(tables: Tables) -> Figure:
    """Draw both by layout, with 95 % intervals and a dashed ideal line."""
    everything, tables = tables, by_gradient(tables)
    if tables["runs"].empty:
        return nothing_by_epochs(WHAT, everything)
    speedup = tables["speedup"]
    if not (speedup["kind"] != "unavailable").any():
        return empty(WHAT, described(tables["runs"]), _why_nothing(tables))
    varying = [key for key in ("variant", "network") if speedup[key].nunique() > 1]
    speedup = labelled(speedup, tables["runs"])
    against = speedup["reference_label"].where(speedup["reference"] > 1)
    series = speedup[["strategy", *varying]].agg(" ".join, axis=1)
    speedup = speedup.assign(series=series + ("\nagainst " + against).fillna(""))
    shown = looks(speedup[speedup["kind"] != "unavailable"], "series")
    parts = panels(speedup)
    most = max(len(_layouts(frame)) for _, frame in parts)
    width = max(3.4, 0.7 + most * (0.4 + 0.36 * len(shown)))
    figure = new(2 * width + 1.8, 3.2 * len(parts))
    grid = figure.subplots(len(parts), 2, squeeze=False)
    for (left, right), ((_, workload), frame) in zip(grid, parts, strict=True):
        for axes, value in ((left, "speedup"), (right, "efficiency")):
            _panel(axes, frame, value, shown)
            heading = panel_title(workload, frame, len(parts) > 1)
            axes.set_title(wrap(heading, width - 0.8, PANEL_TITLE))
        left.set(ylabel="speed-up\n(time of the reference / time)")
        right.set(ylabel="efficiency\n(speed-up / cores per core\nof the reference)")
    legend_of(figure, grid.flat, "strategy")
    title(figure, WHAT, speedup)
    note(
        figure,
        [
            f"Reference: {_joined_references(speedup)}. Median of the ratios of runs of the same "
            "session and repeat; bars: 95 % interval, which is the range for fewer than nine "
            "pairs; dashed: ideal, the number of cores for each core of the reference.",
            *_missing(tables),
            *left_out(everything),
            *gaps(tables["runs"]),
        ],
    )
    return figure


def _panel(axes: Axes, frame: pd.DataFrame, value: str, shown: dict[str, Look]) -> None:
    layouts, names = _layouts(frame), list(shown)
    half = 0.4 / len(names)
    measured = frame[frame["kind"] != "unavailable"]
    for name, look in shown.items():
        group = measured[measured["series"] == name]
        if group.empty:
            continue
        shift = 0.8 * ((names.index(name) + 0.5) / len(names) - 0.5)
        x = group["layout"].map(list(layouts).index).astype(float) + shift
        y, low, high = (group[f"{value}{end}"].astype(float) for end in ("", "_low", "_high"))
        ideal = group["cores"] / group["reference_cores"] if value == "speedup" else 1.0 + 0 * y
        axes.hlines(ideal, x - half, x + half, color="0.4", linestyle="--", linewidth=1)
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
    """Return the ranks of every layout, in the order of their number."""
    layouts = dict(zip(frame["layout"], map(int, frame["ranks"]), strict=True))
    return dict(sorted(layouts.items(), key=lambda item: (item[1], item[0])))


def _joined_references(speedup: pd.DataFrame) -> str:
    """Name the main references."""
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
    speedup = labelled(tables["speedup"], tables["runs"])
    if speedup.empty:
        return "The experiment has no configuration to compare with its reference."
    reasons = "; ".join(f"{row.label}: {row.reason}" for row in speedup.itertuples())
    return f"No ratio is available. {reasons}."
