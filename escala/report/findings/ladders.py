"""Describe how much each change on a ladder contributes."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.core.readable import counted, in_words
from escala.report.findings.words import Finding, Tables, a, of, quoted
from escala.report.tables.ladder import PRODUCT, RUNG, TOLERANCE
from escala.report.tables.views import unit

POSITION = 25
SECTION = "why"

#: How many of a ladder's changes are named.
RUNGS_NAMED = 3


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe each ladder: its largest changes, whether they explain it, the ratio of its ends."""
    for (dataset, workload, ladder), rows in _ladders(tables):
        one = unit(tables, workload)
        way = f"On the ladder {quoted(ladder)} ({quoted(f'{workload} on {dataset}')})"
        for text in (*_changes(quoted(ladder), rows, one), _ends(way, rows.iloc[-1], one)):
            yield Finding(text, "ladder", "ladder")


def answers(tables: Tables) -> Iterator[str]:
    """Yield what the changes of each ladder leave of the time."""
    for (_, workload, ladder), rows in _ladders(tables):
        one = a(unit(tables, workload))
        whole, rungs = rows.iloc[-1], rows[rows["part"] == RUNG].dropna(subset=["ratio"])
        if whole.kind == "unavailable":
            yield f"unavailable: the ladder {quoted(ladder)} has no ratio: {quoted(whole.reason)}"
        elif whole.part == RUNG:
            yield f"with {quoted(whole.change)}, {one} takes {_ratio(whole)} the time"
        else:
            saves = whole.ratio <= 1
            text = (
                f"together, the changes of {quoted(ladder)} {'shorten' if saves else 'lengthen'} "
                f"{one} to {_ratio(whole)} its time"
            )
            if not rungs.empty:
                largest = rungs.sort_values("ratio", ascending=saves).iloc[0]
                text += f"; the largest, {quoted(largest.change)}, to {largest.ratio:.2f}"
            yield text


def _ladders(tables: Tables) -> list[tuple[tuple, pd.DataFrame]]:
    """Return the rows of each ladder by its dataset, workload and name, several changes first."""
    ladders = tables["ladder"].groupby(["dataset", "workload", "ladder"], sort=False)
    return sorted(ladders, key=lambda each: len(each[1]) == 1)


def _ends(way: str, whole: pd.Series, one: str) -> str:
    if whole.kind == "unavailable":
        return f"{way}, the ratio of the ends is unavailable: {quoted(whole.reason)}."
    return (
        f"{way}, {quoted(whole.after)} takes {_ratio(whole)} the time per {one} of "
        f"{quoted(whole.before)}."
    )


def _changes(ladder: str, rows: pd.DataFrame, one: str) -> Iterator[str]:
    if rows.iloc[-1].part == RUNG:
        return
    (product,) = rows[rows["part"] == PRODUCT].itertuples()
    rungs = rows[rows["part"] == RUNG]
    if product.kind == "unavailable":
        yield f"The product of the changes of {ladder} is unavailable: {quoted(product.reason)}."
        return
    # What saves most comes first, or else what costs most.
    ordered = rungs.sort_values("ratio", ascending=product.ratio <= 1).head(RUNGS_NAMED)
    for place, row in enumerate(ordered.itertuples(), start=1):
        rank = "the largest" if place == 1 else f"number {in_words(place)}"
        yield (
            f"Of the changes of {ladder}, {rank} is {quoted(row.change)}: {row.ratio:.2f} "
            f"{of(row.ratio)} the time, {'saving' if row.cost_seconds >= 0 else 'adding'} "
            f"{abs(row.cost_seconds):.2f} s {a(one)}."
        )
    yield (
        f"The {counted(len(rungs), 'change')} of {ladder}, each measured by itself, multiply to "
        f"{product.ratio:.2f}{_interval(product)}."
    )
    if not pd.isna(product.product_to_ends):
        yield f"That product of {ladder} {_agreement(product)}."


def _agreement(product) -> str:
    """Describe how the product of the rungs agrees with the ratio of the ends."""
    off, low, high = (
        each - 1
        for each in (
            product.product_to_ends,
            product.product_to_ends_low,
            product.product_to_ends_high,
        )
    )
    text = f"is {100 * abs(off):.0f} % {'below' if off < 0 else 'above'} the ratio of the ends"
    if pd.isna(low):
        return text
    text += f" (quotient {1 + low:.2f}–{1 + high:.2f})"
    if max(abs(low), abs(high)) <= TOLERANCE:
        return f"{text}: the changes explain it"
    if low > TOLERANCE or high < -TOLERANCE:
        return f"{text}: the changes do not explain it"
    agrees = "it agrees" if abs(off) <= TOLERANCE else "this may be chance"
    return f"{text}: {agrees}, and more matches would tell"


def _ratio(row) -> str:
    """Return a ratio with its interval, and the word after it."""
    return f"{row.ratio:.2f}{_interval(row)} {of(row.ratio)}"


def _interval(row) -> str:
    if pd.isna(row.ratio_low):
        return ""
    resampled = row.part == PRODUCT or row.matches >= VALUES_FOR_INTERVAL
    return f" ({'' if resampled else 'range '}{row.ratio_low:.2f}–{row.ratio_high:.2f})"
