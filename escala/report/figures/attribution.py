"""Draw the parts of a training step: a stacked bar for each rank of each configuration."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.analysis.attribution import OFF_CORE, OVERLAP, PARTS, PASSES, UNEXPLAINED, WHOLE
from escala.report.figures import common
from escala.report.figures.common import (
    NOTE,
    describe_data,
    height_of,
    in_order,
    text_width,
    wrap_names,
)
from escala.report.tables.views import add_labels

CATEGORY = "Time"
CAPTION = (
    "Parts of a training step: a bar for each rank of each configuration. The parts are measured "
    "in separate runs, in which every rank notes the moments of its steps, or PyTorch traces those "
    "of a program. They are means over "
    "steps and runs, and add up to the whole step. The line is the interval of the whole step "
    "over the runs. Off the core is at most the time that the rank lost of its cores while it had "
    "work. Rank 0 sees transfer, copies and negotiation in a library's timeline; for other ranks "
    "they are estimated from rank 0. Overlapped is the part of transfer and copies that went on "
    "while ranks computed. The numbers are in the table ``attribution``."
)
NEEDS = "parts"
WHAT = "Where the time of a training step goes"
# Approximate width of the bars in inches, without names and legend.
_BARS = 5.4
# Distance from the end of a bar to a text, in points.
_GAP = 6
NAMES = {
    "input": "input",
    "dispatch": "into and out of\nthe step",
    "forward": "forward",
    "backward": "backward",
    "compute": "forward and backward",
    "optimiser": "optimiser",
    OFF_CORE: "off the core",
    "skew": "waiting for the\nslowest rank",
    "transfer": "transfer and reduction",
    "copies": "copies to and from\nbuffers",
    "negotiation": "negotiation and cycle",
    UNEXPLAINED: "unexplained",
}
COLOURS = common.palette(PARTS) | {OFF_CORE: (0.35, 0.35, 0.35), UNEXPLAINED: (0.55, 0.55, 0.55)}
# Forward and backward pass have darker shades of the colour of their sum.
COLOURS |= {part: common.shade(COLOURS["compute"], 2 - n) for n, part in enumerate(PASSES)}
MILLISECONDS = 1000


def draw(tables: common.Tables) -> Figure:
    """Draw the parts end to end, and the whole step as a mark with the range of its runs."""
    parts, why = parts_and_gaps(tables["attribution"], "No clocks")
    if parts.empty:
        data = describe_data(tables["attribution"])
        return common.empty(WHAT, data, " ".join(["Nothing was measured.", *why]))
    table = parts.pivot(index="bar", columns="part", values="seconds")
    seconds = MILLISECONDS * table.loc[parts["bar"].unique()]
    figure, axes = rows_of_ranks(seconds.index)
    if has_passes := {*PASSES} <= {*seconds}:
        # Forward and backward pass are drawn in place of their sum.
        seconds["compute"] = seconds["compute"].where(seconds["forward"].isna())
    places, left = range(len(seconds)), pd.Series(0.0, index=seconds.index)
    for part in (part for part in NAMES if part in seconds and (has_passes or part not in PASSES)):
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
    widest = 0.0
    for place, overlap, end in zip(places, seconds[OVERLAP], ends, strict=True):
        if overlap > 0:
            text = f"{overlap:.1f} ms overlapped"
            axes.annotate(
                text, (end, place), xytext=(_GAP, 0), textcoords="offset points", va="center",
                fontsize=NOTE,
            )  # fmt: skip
            widest = max(widest, text_width(text, NOTE) + _GAP / 72)
    axes.set(xlabel="mean over steps (ms)", xlim=(0, 1.05 * ends.max() / (1 - widest / _BARS)))
    common.legend_of(figure, [axes], "part of a step")
    with_timing = parts.dropna(subset="slowdown").drop_duplicates(["dataset", "workload", "label"])
    slow = [f"{row.label} {row.slowdown:.2f}" for row in with_timing.itertuples()]
    gaps = parts[parts["kind"] == "unavailable"].groupby("label", sort=False)["part"].unique()
    notes = [
        *[f"Step divided by the step of timing runs: {', '.join(slow)}."] * bool(slow),
        *(f"Unavailable: {label}: {', '.join(names)}." for label, names in gaps.items()),
    ]
    common.finish(figure, [WHAT, describe_data(parts)], [*notes, *why])
    return figure


def parts_and_gaps(table: pd.DataFrame, missing: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the parts that were measured, and a note on each configuration without parts.

    The column `bar` names the configuration and the rank, and the dataset and workload if these
    vary.

    Parameters
    ----------
    table : `attribution`, or another table with its columns `part`, `status` and `reason`.
    missing : the first words of a note.
    """
    table = add_labels(table, table)
    failed = table[table["part"].isna()]
    why = [
        f"{missing}: {row.label}: {'' if row.status == 'ok' else f'{row.status}: '}{row.reason}."
        for row in failed.itertuples()
    ]
    parts = in_order(table.dropna(subset=["part"]))
    varying = [key for key in ("dataset", "workload") if parts[key].nunique() > 1]
    names = parts[[*varying, "label"]].agg(" ".join, axis=1) if len(parts) else ""
    return parts.assign(bar=names + ", rank\u00a0" + parts["rank"].astype(str)), why


def rows_of_ranks(names: Sequence[str]) -> tuple[Figure, Axes]:
    """Return a figure with a named row for each rank, the first at the top."""
    wrapped = wrap_names(names)
    figure = common.new(9.5, max(0.4, height_of(wrapped) + 0.1) * len(wrapped) + 0.6)
    axes = figure.subplots()
    axes.set_yticks(range(len(wrapped)), wrapped)
    axes.set_ylim(len(wrapped) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    return figure, axes
