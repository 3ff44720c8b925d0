"""Draw one training step of all ranks on one time axis."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from escala.report.figures.common import (
    Tables,
    empty,
    legend,
    name_height,
    new,
    note,
    title,
    wrapped_names,
)
from escala.report.figures.looks import described, in_order
from escala.report.figures.parts import COLOURS, NAMES, rank_names
from escala.report.tables.views import labelled

CATEGORY = "Time"
NEEDS = "clocks"
WHAT = "One training step of all ranks"
_MILLISECONDS = 1000


def draw(tables: Tables) -> Figure:
    """Draw a row for each rank of each configuration, and a bar for each segment of its step."""
    table = labelled(tables["step"], tables["step"])
    without = table[table["part"].isna()]
    why = [f"No step: {row.label}: {_reason(row)}." for row in without.itertuples()]
    segments = table.dropna(subset=["part"])
    if segments.empty:
        return empty(WHAT, described(table), " ".join(["Nothing was measured.", *why]))
    segments = in_order(segments)
    segments = segments.assign(row=rank_names(segments))
    rows = list(segments["row"].unique())
    names = wrapped_names(rows)
    figure = new(9.5, max(0.4, name_height(names) + 0.1) * len(rows) + 0.6)
    axes = figure.subplots()
    for (row, part), group in segments.groupby(["row", "part"], sort=False):
        starts = _MILLISECONDS * group["start_seconds"]
        lengths = _MILLISECONDS * group["end_seconds"] - starts
        axes.broken_barh(
            list(zip(starts, lengths, strict=True)),
            (rows.index(row) - 0.4, 0.8),
            facecolor=COLOURS[part],
            linewidth=0,
        )
    axes.set(xlabel="time since the first rank began the step (ms)", xlim=(0, None))
    axes.set(ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), names)
    axes.grid(axis="y", visible=False)
    shown = [part for part in NAMES if (segments["part"] == part).any()]
    legend(
        figure, [Patch(color=COLOURS[part]) for part in shown], [NAMES[part] for part in shown],
        "part of the step",
    )  # fmt: skip
    title(figure, WHAT, segments)
    note(figure, [_REMARK, *why])
    return figure


_REMARK = (
    "The step of median duration, in a run of its own in which ranks note the moments of their "
    "steps. Of what goes on at once, the part that is highest in the legend is shown. Transfer, "
    "copies and negotiation are seen by rank 0, and estimated by it for the others."
)


def _reason(row) -> str:
    return row.reason if row.status == "ok" else f"{row.status}: {row.reason}"
