"""Provide names and colours of the parts of a training step, and the rows of the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.analysis.attribution import OFF_CORE, PARTS, PASSES, UNEXPLAINED
from escala.report.figures import common
from escala.report.figures.looks import in_order
from escala.report.figures.text import height_of, wrapped_names
from escala.report.tables.views import labelled

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
COLOURS = common.palette(PARTS) | {OFF_CORE: (0.35, 0.35, 0.35), UNEXPLAINED: (0.75, 0.75, 0.75)}
# A lighter and a darker shade of their sum.
_SHADES = sns.light_palette(COLOURS["compute"], 3)[1], sns.dark_palette(COLOURS["compute"], 4)[2]
COLOURS |= dict(zip(PASSES, _SHADES, strict=True))
MILLISECONDS = 1000


def measured(table: pd.DataFrame, missing: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the parts that were measured, and a note on each configuration without any.

    The column `bar` names the configuration and the rank, with what it trains where that varies.

    Parameters
    ----------
    missing : what the latter lack.
    """
    table = labelled(table, table)
    failed = table[table["part"].isna()]
    ended = [row.reason if row.status == "ok" else f"{row.status}: {row.reason}"
             for row in failed.itertuples()]  # fmt: skip
    why = [f"{missing}: {of}: {end}." for of, end in zip(failed["label"], ended, strict=True)]
    parts = in_order(table.dropna(subset=["part"]))
    varying = [key for key in ("dataset", "workload") if parts[key].nunique() > 1]
    names = parts[[*varying, "label"]].agg(" ".join, axis=1) if len(parts) else ""
    return parts.assign(bar=names + ", rank\u00a0" + parts["rank"].astype(str)), why


def rows_of_ranks(names: Sequence[str]) -> tuple[Figure, Axes]:
    """Return a figure with a named row for each rank, the first at the top."""
    wrapped = wrapped_names(names)
    figure = common.new(9.5, max(0.4, height_of(wrapped) + 0.1) * len(wrapped) + 0.6)
    axes = figure.subplots()
    axes.set_yticks(range(len(wrapped)), wrapped)
    axes.set_ylim(len(wrapped) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    return figure, axes
