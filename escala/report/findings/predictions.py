"""Describe how well the cost model predicts what was measured."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.report.findings.words import Finding, Tables, count, quoted, with_labels

POSITION = 45
SECTION = "sure"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe the errors of the predictions, where there are both, and bounds of programs."""
    table = with_labels(tables["predictions"], tables)
    yield from _errors(table)
    yield from _bounds(table)


def _errors(table: pd.DataFrame) -> Iterator[Finding]:
    both = table[table["error"].notna()]
    if both.empty:
        return
    runs, covered = int(both["runs"].sum()), int(both["covered"].sum())
    for text in (
        f"Of {count(runs, 'run')} that the cost model did not see, {covered} took a time within "
        "its intervals.",
        _largest(both),
    ):
        yield Finding(text, "predictions", "seconds_per_epoch")


def _bounds(table: pd.DataFrame) -> Iterator[Finding]:
    """Describe the bounds of programs: those that were measured, and those that were not."""
    bounded = table[table["basis"] == "bounds"]
    measured = bounded[bounded["runs"] > 0]
    if not measured.empty:
        yield Finding(
            f"Of {count(int(measured['runs'].sum()), 'run')} of programs, "
            f"{int(measured['covered'].sum())} took a time within the bounds that were estimated "
            "without them.",
            "predictions",
            "seconds_per_epoch",
        )
    for row in bounded[(bounded["runs"] == 0) & (bounded["ranks"] > 1)].itertuples():
        yield Finding(
            f"A step of {quoted(row.label)}, not measured, is estimated to take between "
            f"{row.ratio_low:.2f} and {row.ratio_high:.2f} of that of one process.",
            "predictions",
        )


def _largest(both: pd.DataFrame) -> str:
    worst = both.loc[both["error"].abs().idxmax()]
    direction = "above" if worst["error"] > 0 else "below"
    return (
        f"The largest error of the cost model is that of {quoted(worst['label'])}: the predicted "
        f"time is {100 * abs(worst['error']):.0f} % {direction} the measured one."
    )
