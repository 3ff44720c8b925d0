"""Describe how well the cost model predicts what was measured."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.report.findings.words import Finding, Tables, count, quoted, with_labels

POSITION = 45
SECTION = "sure"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe the errors of the predictions, where there are both."""
    table = with_labels(tables["predictions"], tables)
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


def _largest(both: pd.DataFrame) -> str:
    worst = both.loc[both["error"].abs().idxmax()]
    direction = "above" if worst["error"] > 0 else "below"
    return (
        f"The largest error of the cost model is that of {quoted(worst['label'])}: the predicted "
        f"time is {100 * abs(worst['error']):.0f} % {direction} the measured one."
    )
