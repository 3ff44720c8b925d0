"""Describe how much each change on a ladder contributes."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.ladder import PRODUCT, RUNG, TOLERANCE
from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.report.findings.words import (
    Finding,
    Tables,
    a,
    count,
    in_words,
    quoted,
)
from escala.report.tables.views import unit

POSITION = 25
SECTION = "why"

#: Of a ladder's changes, so many are named.
RUNGS_NAMED = 3


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe each ladder: its largest changes, whether they explain it, the ratio of its ends."""
    for (dataset, workload, ladder), rows in _ladders(tables):
        of = unit(tables, workload)
        way = f"On the ladder {quoted(ladder)} ({quoted(f'{workload} on {dataset}')})"
        for text in (*_changes(quoted(ladder), rows, of), _ends(way, rows.iloc[-1], of)):
            yield Finding(text, "ladder", "ladder")


def answers(tables: Tables) -> Iterator[str]:
    """Yield what the changes of each ladder leave of the time."""
    for (_, workload, ladder), rows in _ladders(tables):
        of = a(unit(tables, workload))
        whole, rungs = rows.iloc[-1], rows[rows["part"] == RUNG]
        if whole.kind == "unavailable":
            yield f"unavailable: the ladder {quoted(ladder)} has no ratio: {quoted(whole.reason)}"
        elif whole.part == RUNG:
            yield f"with {quoted(whole.change)}, {of} takes {_ratio(whole)} of the time"
        else:
            changed = "shorten" if whole.ratio <= 1 else "lengthen"
            text = (
                f"together, the changes of {quoted(ladder)} {changed} {of} to {_ratio(whole)} "
                "of its time"
            )
            known = _by_size(rungs.dropna(subset=["ratio"]), saving=whole.ratio <= 1)
            if not known.empty:
                largest = known.iloc[0]
                text += f"; the largest, {quoted(largest.change)}, to {largest.ratio:.2f}"
            yield text


def _ladders(tables: Tables) -> list[tuple[tuple, pd.DataFrame]]:
    """Return the rows of each ladder by its dataset, workload and name, several changes first."""
    ladders = tables["ladder"].groupby(["dataset", "workload", "ladder"], sort=False)
    return sorted(ladders, key=lambda each: len(each[1]) == 1)


def _by_size(rungs: pd.DataFrame, saving: bool) -> pd.DataFrame:
    """Return changes with that which saves most first, or else with that which costs most."""
    return rungs.sort_values("ratio", ascending=saving)


def _ends(way: str, whole: pd.Series, of: str) -> str:
    if whole.kind == "unavailable":
        return f"{way}, the ratio of the ends is unavailable: {quoted(whole.reason)}."
    return (
        f"{way}, {quoted(whole.after)} takes {_ratio(whole)} of the time per {of} of "
        f"{quoted(whole.before)}."
    )


def _changes(ladder: str, rows: pd.DataFrame, of: str) -> Iterator[str]:
    if rows.iloc[-1].part == RUNG:
        return
    (product,) = rows[rows["part"] == PRODUCT].itertuples()
    rungs = rows[rows["part"] == RUNG]
    if product.kind == "unavailable":
        yield f"The product of the changes of {ladder} is unavailable: {quoted(product.reason)}."
        return
    most = _by_size(rungs, saving=product.ratio <= 1).head(RUNGS_NAMED)
    for place, row in enumerate(most.itertuples(), start=1):
        rank = "the largest" if place == 1 else f"number {in_words(place)}"
        yield (
            f"Of the changes of {ladder}, {rank} is {quoted(row.change)}: {row.ratio:.2f} of "
            f"the time, {'saving' if row.cost_seconds >= 0 else 'adding'} "
            f"{abs(row.cost_seconds):.2f} s {a(of)}."
        )
    yield (
        f"The {count(len(rungs), 'change')} of {ladder}, each measured by itself, multiply to "
        f"{_ratio(product)}."
    )
    if not pd.isna(product.of_direct):
        yield f"That product of {ladder} {_agreement(product)}."


def _agreement(product) -> str:
    """Describe how the product of the rungs agrees with the ratio of the ends."""
    off = product.of_direct - 1
    text = f"is {100 * abs(off):.0f} % {'below' if off < 0 else 'above'} the ratio of the ends"
    if pd.isna(product.of_direct_low):
        return text
    low, high = product.of_direct_low - 1, product.of_direct_high - 1
    interval = f" (quotient {1 + low:.2f}–{1 + high:.2f})"
    if max(abs(low), abs(high)) <= TOLERANCE:
        return f"{text}{interval}: the changes explain it"
    if low > TOLERANCE or high < -TOLERANCE:
        return f"{text}{interval}: the changes do not explain it"
    agrees = "it agrees" if abs(off) <= TOLERANCE else "this may be chance"
    return f"{text}{interval}: {agrees}, and more pairs would tell"


def _ratio(row) -> str:
    if pd.isna(row.ratio_low):
        return f"{row.ratio:.2f}"
    resampled = row.part == PRODUCT or row.pairs >= VALUES_FOR_INTERVAL
    return (
        f"{row.ratio:.2f} ({'' if resampled else 'range '}{row.ratio_low:.2f}–{row.ratio_high:.2f})"
    )
