"""Describe how well the cost model predicts what was measured, and what laws extrapolate."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.core.readable import counted
from escala.report.findings.best_use import answers
from escala.report.findings.words import Finding, Tables, among, of, quoted, with_labels
from escala.runtime.layout import Layout

POSITION = 45
SECTION = "sure"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe the errors of the predictions, bounds of programs, and laws of scaling."""
    table = with_labels(tables["predictions"], tables)
    for text in (*_errors(table), *_bounds(table)):
        yield Finding(text, "predictions", "seconds_per_epoch")
    for row in table[
        (table["basis"] == "bounds") & (table["runs"] == 0) & (table["ranks"] > 1)
    ].itertuples():
        yield Finding(
            f"A step of {quoted(row.label)}, not measured, is estimated to take between "
            f"{row.ratio_low:.2f} and {row.ratio_high:.2f} {of(row.ratio_high)} that of one "
            "process.",
            "predictions",
        )
    yield from (Finding(text, "amdahl") for text in _extrapolated(tables))


def _errors(table: pd.DataFrame) -> Iterator[str]:
    """Describe the errors of the predictions of what was measured too."""
    both = table[table["error"].notna()]
    if both.empty:
        return
    held = both[both["covered"].notna()]
    if len(held):
        runs, covered = counted(int(held["runs"].sum()), "run"), int(held["covered"].sum())
        yield (
            f"Of {runs} that the cost model did not see, {covered} took a time within its "
            "intervals."
        )
    worst = both.loc[both["error"].abs().idxmax()]
    yield (
        f"The largest error of the cost model is that of {quoted(worst['label'])}: the predicted "
        f"time is {100 * abs(worst['error']):.0f} % {'above' if worst['error'] > 0 else 'below'} "
        "the measured one."
    )


def _bounds(table: pd.DataFrame) -> Iterator[str]:
    """Describe the bounds of programs that were measured too."""
    measured = table[(table["basis"] == "bounds") & (table["runs"] > 0)]
    if not measured.empty:
        yield (
            f"Of {counted(int(measured['runs'].sum()), 'run')} of programs, "
            f"{int(measured['covered'].sum())} took a time within the bounds that were estimated "
            "without them."
        )


def _extrapolated(tables: Tables) -> Iterator[str]:
    """Describe twice the most ranks or threads of each series that has an answer."""
    table = tables["amdahl"]
    table = table[(table["law_kind"] == "estimated") & (table["reference"] == 1)]
    for row in among(table, {row.names for row in answers(tables)}).itertuples():
        number = row.extrapolated_times * Layout.parse(row.reference_layout).ranks
        if row.law_over == "threads":
            number = row.extrapolated_times * row.reference_cores
        yield (
            f"With {number:.0f} {row.law_over}, {quoted(f'{row.strategy} {row.variant}')} would be "
            f"{row.extrapolated_speedup:.2f} times as fast as its reference, extrapolated by the "
            "universal scalability law."
        )
