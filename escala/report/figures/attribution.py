"""Draw the parts of a training step: a stacked bar for each rank of each configuration."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from escala.analysis.attribution import OVERLAP, PASSES, WHOLE
from escala.report.figures import common
from escala.report.figures.looks import described
from escala.report.figures.parts import COLOURS, MILLISECONDS, NAMES, measured, rows_of_ranks
from escala.report.figures.text import NOTE, text_width

CATEGORY = "Time"
CAPTION = (
    "Parts of a training step, a bar for each rank of each configuration, in runs of their own, in "
    "which every rank notes the moments of its steps. Means over steps and runs, which add up to "
    "the whole step; its line is the 95 % interval of the runs. Off the core is what the rank lost "
    "of its cores while it had work, at most. "
    "Transfer, copies and negotiation in a library's timeline are seen by rank 0, and estimated by "
    "it for the others. Overlapped is the part of transfer and copies that went "
    "on while ranks computed. The numbers are in the table ``attribution``."
)
NEEDS = "clocks"
WHAT = "Where the time of a training step goes"
# The width that names and legend leave of the figure, about, in inches.
_BARS = 5.4
# Between the end of a bar and a text, in points.
_GAP = 6


def draw(tables: common.Tables) -> Figure:
    """Draw the parts end to end, and the whole step as a mark with its interval."""
    parts, why = measured(tables["attribution"], "No clocks")
    if parts.empty:
        data = described(tables["attribution"])
        return common.empty(WHAT, data, " ".join(["Nothing was measured.", *why]))
    table = parts.pivot(index="bar", columns="part", values="seconds")
    seconds = MILLISECONDS * table.loc[parts["bar"].unique()]
    figure, axes = rows_of_ranks(seconds.index)
    if known := {*PASSES} <= {*seconds}:
        # They are drawn in place of their sum.
        seconds["compute"] = seconds["compute"].where(seconds["forward"].isna())
    places, left = range(len(seconds)), pd.Series(0.0, index=seconds.index)
    for part in (each for each in NAMES if known or each not in PASSES):
        width = seconds[part].fillna(0.0)
        if not width.any():
            continue
        axes.barh(places, width, left=left, color=COLOURS[part], label=NAMES[part])
        left += width
    axes.plot(seconds[WHOLE], places, "|", color="black", markersize=14, label="whole step")
    whole = parts[parts["part"] == WHOLE].set_index("bar").loc[seconds.index]
    low, high = (MILLISECONDS * whole[f"{end}_seconds"].astype(float) for end in ("low", "high"))
    axes.hlines(places, low, high, color="black", linewidth=1)
    ends = pd.concat([seconds[WHOLE], left, high], axis=1).max(axis=1)
    written = 0.0
    for place, won, end in zip(places, seconds[OVERLAP], ends, strict=True):
        if won > 0:
            text = f"{won:.1f} ms overlapped"
            axes.annotate(
                text, (end, place), xytext=(_GAP, 0), textcoords="offset points", va="center",
                fontsize=NOTE,
            )  # fmt: skip
            written = max(written, text_width(text, NOTE) + _GAP / 72)
    axes.set(xlabel="mean over steps (ms)", xlim=(0, 1.05 * ends.max() / (1 - written / _BARS)))
    common.legend_of(figure, [axes], "part of a step")
    common.finish(figure, [WHAT, described(parts)], [*_remarks(parts), *why])
    return figure


def _remarks(parts: pd.DataFrame) -> list[str]:
    known = parts.dropna(subset="slowdown").drop_duplicates(["dataset", "workload", "label"])
    slow = [f"{row.label} {row.slowdown:.2f}" for row in known.itertuples()]
    gaps = parts[parts["kind"] == "unavailable"].groupby("label", sort=False)["part"].unique()
    return [
        *[f"Step against that of the timing runs: {', '.join(slow)}."] * bool(slow),
        *(f"Unavailable: {label}: {', '.join(names)}." for label, names in gaps.items()),
    ]
