"""Describe how the time of a training step is divided, or say that it was not measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pandas as pd

from escala.analysis.attribution import OVERLAP, WHOLE
from escala.analysis.parts import PARTS
from escala.core.environment import call
from escala.report.findings.best_use import (
    MORE_DOES_NOT_PAY,
    PAYS,
    UNAVAILABLE,
    BestUse,
    answers,
    shown,
)
from escala.report.findings.words import Finding, Tables, among, quoted, with_labels
from escala.report.tables.views import names_of_rows, programs, trained_by_steps
from escala.strategies import STRATEGIES
from escala.training.marks import HOOK

POSITION = 20
SECTION = "why"

#: Runs with clocks that were slowed by factors further apart are not compared. On two idle cores of
#: a virtual machine seven equal runs differed by up to 1.33.
UNLIKE = 1.5

_CLOCKS = "clocks: {enabled: true}"
_PART_NAMES = {
    "input": "on input",
    "dispatch": "entering and leaving the step",
    "compute": "computing forward and backward",
    "optimiser": "in the optimiser",
    "skew": "waiting for the slowest rank",
    "transfer": "in transfer and reduction",
    "copies": "copying to and from buffers",
    "negotiation": "in negotiation and cycles",
}


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe how the time of a step of rank 0 is divided, if its clocks were read.

    Where they were not, the reason of an answer is not known, and this comes before all else.
    """
    for row in _unmeasured(tables):
        yield Finding(_not_measured(row, tables), "attribution")
    steps = clocked(tables)
    slowdowns = {label: parts.loc[WHOLE, "slowdown"] for label, parts in steps}
    for label, parts in steps:
        for text in _texts(label, parts, slowdowns):
            yield Finding(text, "attribution", "attribution")


def _unmeasured(tables: Tables) -> list[BestUse]:
    """Return the answers that were timed, with neither parts of a step nor a ladder."""
    measured = set(names_of_rows(tables["attribution"].dropna(subset=["part"])))
    explained = set(tables["ladder"]["workload"])
    return [
        row for row in answers(tables)
        if row.verdict != UNAVAILABLE
        and row.names not in measured and row.workload not in explained
    ]  # fmt: skip


def _not_measured(row: BestUse, tables: Tables) -> str:
    """Return a sentence: the reason of an answer was not measured, and how to measure it.

    Where no call can measure it, the sentence has the reason for that instead.
    """
    label = quoted(row.label)
    what = f"where the time of {label} goes"
    if row.verdict in (PAYS, MORE_DOES_NOT_PAY):
        what = f"why {label} takes less time than {quoted(row.closest.label)}"
    how = f"to see it, add `{_CLOCKS}` to the experiment, then call `{call('run -e FILE')}`"
    if row.workload in programs(tables):
        how = "parts of a program's step are not known"
        if HOOK in set(tables["runs"].loc[tables["runs"]["workload"] == row.workload, "known_by"]):
            how += "; `torch-trace: {enabled: true}` traces PyTorch's"
    elif not (ended := among(tables["attribution"], {row.names})["reason"].dropna()).empty:
        how = f"the run with clocks ended by {quoted(ended.iloc[0])}"
    elif (strategy := STRATEGIES.get(row.names[2])) and not strategy.waits():
        how = "its processes make no steps together"
    return f"Not measured: {what}; {how}."


def clocked(tables: Tables) -> list[tuple[str, pd.DataFrame]]:
    """Return the parts of a step of rank 0 of the configurations that findings describe.

    Each is a quoted label with rows of the table `attribution`. If no configuration that answers
    has clocks, all configurations are returned that have.
    """
    tables = trained_by_steps(tables)
    table = with_labels(tables["attribution"].dropna(subset=["part"]), tables)
    table = table[table["rank"] == 0]
    if not among(table, {row.names for row in answers(tables)}).empty:
        table = among(table, shown(tables))
    groups = table.groupby("label", sort=False)
    return [(quoted(label), parts.set_index("part")) for label, parts in groups]


def _texts(label: str, parts: pd.DataFrame, slowdowns: Mapping[str, float]) -> Iterator[str]:
    """Compare a step with one of the main reference, and name its largest part and its overlap.

    Parameters
    ----------
    slowdowns : a step with clocks over one of the timing runs, by label; NaN if unknown.
    """
    yield from _more(label, parts, slowdowns)
    fractions = parts["fraction"].reindex(PARTS).dropna()
    if not fractions.empty:
        part = fractions.idxmax()
        yield (
            f"A step of {label} takes {1000 * parts.loc[WHOLE, 'median_seconds']:.1f} ms, "
            f"{100 * fractions[part]:.0f} % of it {_PART_NAMES[part]}."
        )
    overlap = 1000 * parts["median_seconds"].get(OVERLAP, 0.0)
    if overlap > 0:
        yield f"In a step of {label}, {overlap:.1f} ms of exchange go on alongside other parts."


def _more(label: str, parts: pd.DataFrame, slowdowns: Mapping[str, float]) -> Iterator[str]:
    """Compare a step with one of the main reference, if that was measured.

    The largest part that changed in the same direction is named. Both steps are of a single run
    with clocks. If one of these runs was slowed and the other was not, they are not compared.
    """
    more = 1000 * (parts["median_seconds"] - parts["reference_median_seconds"])
    part_differences = more.reindex(PARTS).dropna()
    if pd.isna(more[WHOLE]) or part_differences.empty:
        return
    reference = quoted(parts["reference_label"].iloc[0])
    factors = [slowdowns[label], slowdowns.get(reference, math.nan)]
    if max(factors) > UNLIKE * min(factors):
        yield (
            f"Steps of {label} and {reference} are not compared: something slowed one of their "
            "runs with clocks."
        )
        return
    sign = 1 if more[WHOLE] >= 0 else -1
    part = (sign * part_differences).idxmax()
    text = f"A step of {label} takes {_difference(more[WHOLE])} than a step of {reference}"
    if sign * part_differences[part] > 0:
        text += f": {_difference(part_differences[part])} {_PART_NAMES[part]}"
    yield f"{text}."


def _difference(milliseconds: float) -> str:
    """Describe how much more or less time something takes."""
    return f"{abs(milliseconds):.1f} ms {'more' if milliseconds >= 0 else 'less'}"
