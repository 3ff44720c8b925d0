"""Draw one training step of all ranks on one time axis."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from escala.report.figures import common
from escala.report.figures.attribution import (
    COLOURS,
    MILLISECONDS,
    NAMES,
    parts_and_gaps,
    rows_of_ranks,
)
from escala.report.figures.common import describe_data

CATEGORY = "Time"
CAPTION = (
    "One training step of all ranks on one time axis: what each rank did from moment to moment. It "
    "is the step of median duration in a separate run, in which every rank notes the moments of "
    "its steps. When several parts go on at once, the bar shows the part that is highest in the "
    "legend. Rank 0 sees transfer, copies and negotiation in a library's timeline; for other ranks "
    "they are estimated from rank 0. The segments are in the table ``step``."
)
NEEDS = "clocks"
WHAT = "One training step of all ranks"


def draw(tables: common.Tables) -> Figure:
    """Draw a row for each rank of each configuration, and a bar for each segment of its step."""
    segments, why = parts_and_gaps(tables["step"], "No step")
    if segments.empty:
        data = describe_data(tables["step"])
        return common.empty(WHAT, data, " ".join(["Nothing was measured.", *why]))
    rows = list(segments["bar"].unique())
    figure, axes = rows_of_ranks(rows)
    for (row, part), group in segments.groupby(["bar", "part"], sort=False):
        starts = MILLISECONDS * group["start_seconds"]
        lengths = MILLISECONDS * group["end_seconds"] - starts
        axes.broken_barh(
            list(zip(starts, lengths, strict=True)), (rows.index(row) - 0.4, 0.8),
            facecolor=COLOURS[part], linewidth=0,
        )  # fmt: skip
    axes.set(xlabel="time since the first rank began the step (ms)", xlim=(0, None))
    shown = [part for part in NAMES if (segments["part"] == part).any()]
    patches = {NAMES[part]: Patch(color=COLOURS[part]) for part in shown}
    common.legend(figure, patches, "part of the step")
    common.finish(figure, [WHAT, describe_data(segments)], why)
    return figure
