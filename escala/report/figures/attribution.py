"""Draw the parts of a training step: a stacked bar for each rank of each configuration."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from escala.analysis.attribution import OVERLAP, PARTS, UNEXPLAINED, WHOLE
from escala.report.figures.common import (
    NOTE,
    Tables,
    empty,
    legend_of,
    name_height,
    new,
    note,
    text_width,
    title,
    wrapped_names,
)
from escala.report.figures.looks import described, in_order
from escala.report.figures.parts import COLOURS, NAMES, rank_names
from escala.report.tables.views import labelled

CATEGORY = "Time"
NEEDS = "clocks"
WHAT = "Where the time of a training step goes"
_MILLISECONDS = 1000
# The width that names and legend leave of the figure, about, in inches.
_WIDTH, _BARS = 9.5, 5.4
# Between the end of a bar and a text, in points.
_GAP = 6


def draw(tables: Tables) -> Figure:
    """Draw the medians of the parts end to end, and the median of the whole step as a line."""
    table = labelled(tables["attribution"], tables["attribution"])
    failed = table[table["part"].isna()]
    why = [f"No clocks: {row.label}: {row.status}: {row.reason}." for row in failed.itertuples()]
    parts = table.dropna(subset=["part"])
    if parts.empty:
        return empty(WHAT, described(table), " ".join(["Nothing was measured.", *why]))
    parts = in_order(parts)
    bars = rank_names(parts)
    seconds = parts.assign(bar=bars).pivot(index="bar", columns="part", values="median_seconds")
    seconds = seconds.loc[bars.unique()] * _MILLISECONDS
    names = wrapped_names(seconds.index)
    figure = new(_WIDTH, max(0.4, name_height(names) + 0.1) * len(seconds) + 0.6)
    axes = figure.subplots()
    left = pd.Series(0.0, index=seconds.index)
    for part in (*PARTS, UNEXPLAINED):
        width = seconds[part].fillna(0.0)
        axes.barh(seconds.index, width, left=left, color=COLOURS[part], label=NAMES[part])
        left += width
    ends = seconds[WHOLE]
    axes.plot(ends, seconds.index, "|", color="black", markersize=14, label="whole step")
    won = seconds[OVERLAP][seconds[OVERLAP] > 0].map("{:.1f} ms overlapped".format)
    ends = pd.concat([ends, left], axis=1).max(axis=1)
    for bar, text in won.items():
        place = {"xytext": (_GAP, 0), "textcoords": "offset points"}
        axes.annotate(text, (ends[bar], bar), **place, va="center", fontsize=NOTE)
    written = max((text_width(text, NOTE) + _GAP / 72 for text in won), default=0.0)
    axes.set(xlabel="median over steps (ms)", xlim=(0, 1.05 * ends.max() / (1 - written / _BARS)))
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    legend_of(figure, [axes], "part of a step")
    title(figure, WHAT, parts)
    note(figure, [*_remarks(parts), *why])
    return figure


def _remarks(parts: pd.DataFrame) -> list[str]:
    lines = [
        "In a run of its own, in which ranks note the moments of their steps. Transfer, copies "
        "and negotiation are seen by rank 0, and estimated by it for the others. Overlapped is the "
        "part of transfer and copies that went on while ranks computed. Medians of parts need not "
        "add up to that of the whole."
    ]
    known = parts.dropna(subset="slowdown").drop_duplicates(["dataset", "workload", "label"])
    slow = [f"{row.label} {row.slowdown:.2f}" for row in known.itertuples()]
    gaps = parts[(parts["kind"] == "unavailable")].groupby("label", sort=False)["part"].unique()
    lines += [f"Step against that of the timing runs: {', '.join(slow)}."] * bool(slow)
    lines += [f"Unavailable: {label}: {', '.join(names)}." for label, names in gaps.items()]
    return lines
