"""Provide names and colours of the parts of a training step, and names of the ranks."""

from __future__ import annotations

import pandas as pd

from escala.analysis.attribution import PARTS, UNEXPLAINED
from escala.report.figures.common import palette

NAMES = {
    "input": "input",
    "dispatch": "into and out of\nthe compiled step",
    "compute": "forward and backward",
    "optimiser": "optimiser",
    "skew": "waiting for the\nslowest rank",
    "transfer": "transfer and reduction",
    "copies": "copies to and from\nfusion buffers",
    "negotiation": "negotiation and cycle",
    UNEXPLAINED: "unexplained",
}
COLOURS = palette(PARTS) | {UNEXPLAINED: (0.75, 0.75, 0.75)}


def rank_names(table: pd.DataFrame) -> pd.Series:
    """Return the configuration and the rank of each row, with what it trains where that varies.

    Parameters
    ----------
    table : with the columns `dataset`, `workload`, `label` and `rank`.
    """
    varying = [key for key in ("dataset", "workload") if table[key].nunique() > 1]
    configurations = table[[*varying, "label"]].agg(" ".join, axis=1)
    return configurations + ", rank\u00a0" + table["rank"].astype(str)
