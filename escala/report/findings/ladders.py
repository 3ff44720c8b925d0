"""Describe how much each change on a ladder contributes."""

from __future__ import annotations

import pandas as pd

from escala.analysis.ladder import PRODUCT, RUNG, TOLERANCE
from escala.report.findings.words import PAIRS_FOR_INTERVAL, Tables, count, joined, quoted

POSITION = 50

#: Of a ladder's changes, so many are named.
RUNGS_NAMED = 3


def sentence(tables: Tables, name: str) -> str:
    """Describe each ladder: the ratio of its ends, and whether its rungs explain it."""
    ladders = tables["ladder"].groupby(["dataset", "workload", "ladder"], sort=False)
    return " ".join(_ladder(*names, rows) for names, rows in ladders)


def _ladder(dataset: str, workload: str, ladder: str, rows: pd.DataFrame) -> str:
    whole = rows.iloc[-1]
    way = f"From {whole.before} to {whole.after} ({ladder}, {workload} on {dataset})"
    said = (
        f"{way} the ratio is unavailable ({quoted(whole.reason)})." if whole.kind == "unavailable"
        else f"{way} an epoch with all that is in it takes {_ratio(whole)} of the time."
    )  # fmt: skip
    if whole.part == RUNG:
        return said
    (product,) = rows[rows["part"] == PRODUCT].itertuples()
    return f"{said} {_changes(rows[rows['part'] == RUNG], product)}"


def _changes(rungs: pd.DataFrame, product) -> str:
    if product.kind == "unavailable":
        return f"What each change between is worth is not known of all ({quoted(product.reason)})."
    agreement = "" if pd.isna(product.of_direct) else f", {_agreement(product)}"
    most = rungs.sort_values("ratio", ascending=product.ratio <= 1).head(RUNGS_NAMED)
    named = (
        f"{row.change} ({row.ratio:.2f}, {row.cost_seconds:.2f} s)" for row in most.itertuples()
    )
    return (
        f"The {count(len(rungs), 'change')} between, each measured by itself, multiply to "
        f"{_ratio(product)}{agreement}. Most is due to {joined(named)}."
    )


def _agreement(product) -> str:
    """Describe how the product of the rungs agrees with the ratio of the ends."""
    off = product.of_direct - 1
    said = f"{100 * abs(off):.0f} % {'below' if off < 0 else 'above'} that"
    if pd.isna(product.of_direct_low):
        return said
    low, high = product.of_direct_low - 1, product.of_direct_high - 1
    interval = f"95 % interval of the quotient {1 + low:.2f} to {1 + high:.2f}"
    if max(abs(low), abs(high)) <= TOLERANCE:
        return f"{said}: they explain it"
    if low > TOLERANCE or high < -TOLERANCE:
        return f"{said} ({interval}): they do not explain it"
    verdict = "agrees with it" if abs(off) <= TOLERANCE else "may be chance"
    return f"{said}, which {verdict} ({interval}): to be sure takes more pairs"


def _ratio(row) -> str:
    if pd.isna(row.ratio_low):
        return f"{row.ratio:.2f}"
    resampled = row.part == PRODUCT or row.pairs >= PAIRS_FOR_INTERVAL
    kind = "95 % interval" if resampled else "range"
    return f"{row.ratio:.2f} ({kind} {row.ratio_low:.2f} to {row.ratio_high:.2f})"
