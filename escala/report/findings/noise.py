"""Describe what the pilot asked for, and the noise of the machine: of duplicates, and drift."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.core.readable import counted, in_words
from escala.report.findings.best_use import shown
from escala.report.findings.compared import Ratio, interval
from escala.report.findings.words import Finding, Tables, among, of, quoted, with_labels

POSITION = 41
SECTION = "sure"
#: A machine that runs nothing else changes by about a fifth within a session
#: (docs/decisions/005-sessions.md). Runs of a match follow each other, so they see little of it.
_HARDLY_NOTICED = 0.25


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe the pilot, the noise floor of the references that findings show, and the drift."""
    yield from (Finding(text, "pilot") for text in _pilot(tables))
    for row in among(with_labels(tables["noise"], tables), shown(tables)).itertuples():
        yield Finding(_floor(row), "noise")
    yield from (Finding(text, "drift") for text in _drift(tables["drift"]))


def _pilot(tables: Tables) -> Iterator[str]:
    """Describe the ratio that needed the most matches, and whether that number was allowed."""
    table = with_labels(tables["pilot"], tables).dropna(subset=["needed"])
    if table.empty:
        return
    row = table.loc[table["needed"].idxmax()]
    yield (
        f"In the pilot the ratio of {quoted(row['label'])} had a deviation of "
        f"{100 * row['deviation']:.1f} %, which requires {row['needed']} matches."
    )
    if row["cut"]:
        yield (
            f"The experiment allowed {row['repeats']} repeats, so intervals may be wider than "
            "requested."
        )


def _floor(row) -> str:
    label = quoted(row.label)
    if row.kind == "unavailable":
        return f"The noise floor of {label} is unavailable: {quoted(row.reason)}."
    if pd.isna(row.floor) and row.matches >= VALUES_FOR_INTERVAL:
        return f"There is no noise floor of {label}: other work disturbed too many of its runs."
    if pd.isna(row.floor):
        least, matches = in_words(VALUES_FOR_INTERVAL), in_words(row.matches)
        return f"A noise floor needs {least} matches, and {label} has {matches} with itself."
    ratio = Ratio(row.ratio, row.ratio_low, row.ratio_high, row.matches)
    farther = max(ratio.high, 1 / ratio.low) - 1
    return (
        f"{label} takes {ratio.value:.2f} {of(ratio.value)} its own time{interval(ratio)}: equal "
        f"configurations may seem to differ by {100 * farther:.1f} %."
    )


def _drift(sessions: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on the sessions that were judged, if there are any."""
    judged = sessions[sessions["kind"] == "measured"]
    drifted = judged[judged["detected"].fillna(False)]
    several = counted(len(judged), "session")
    largest = drifted["change"].abs().max()
    hardly = ", which matches hardly notice" * bool(largest < _HARDLY_NOTICED)
    if judged.empty:
        return
    if drifted.empty:
        yield f"No drift of the machine was detected in {several}."
    elif len(drifted) > 1:
        yield f"The machine drifted in {len(drifted)} of {several}{hardly}."
    else:
        row = next(drifted.itertuples())
        session, low, high = quoted(row.session), row.change_low, row.change_high
        if low < 0 < high:
            yield (
                f"The speed of the machine changed within session {session}, but not in one "
                "direction."
            )
        else:
            yield (
                f"The machine drifted in session {session}: a run took {1 + row.change:.2f} times "
                f"as long at its end ({1 + low:.2f}–{1 + high:.2f}){hardly}."
            )
