"""Describe the noise of the machine: references against themselves, and drift over sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.report.findings.verdicts import Ratio, interval, own_names, shown
from escala.report.findings.words import Finding, Tables, count, in_words, quoted, with_labels

POSITION = 42
SECTION = "sure"
#: A machine that runs nothing else changes by about a fifth within a session
#: (docs/decisions/005-sessions.md). Runs of a pair follow each other, so they see little of it.
_HARDLY_NOTICED = 0.25


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe the noise floor of the references that findings show, and the drift."""
    chosen = shown(tables)
    for row in with_labels(tables["noise"], tables).itertuples():
        if own_names(row) in chosen:
            yield Finding(_floor(row), "noise")
    for text in _drift(tables["drift"]):
        yield Finding(text, "drift")


def _floor(row) -> str:
    label = quoted(row.label)
    if row.kind == "unavailable":
        return f"The noise floor of {label} is unavailable: {quoted(row.reason)}."
    if pd.isna(row.floor):
        least, pairs = in_words(VALUES_FOR_INTERVAL), in_words(row.pairs)
        return f"A noise floor needs {least} pairs of runs, and {label} has {pairs} with itself."
    ratio = Ratio(row.ratio, row.ratio_low, row.ratio_high, row.pairs)
    return (
        f"{label} takes {ratio.value:.2f} of its own time{interval(ratio)}, so an effect below "
        f"{100 * row.floor:.1f} % gets no verdict."
    )


def _drift(sessions: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on the sessions that were judged, if there are any."""
    judged = sessions[sessions["kind"] == "measured"]
    drifted = judged[judged["detected"].fillna(False)]
    if judged.empty:
        return
    if drifted.empty:
        yield f"No drift of the machine was detected in {count(len(judged), 'session')}."
    elif len(drifted) == 1:
        yield _drifted(next(drifted.itertuples()))
    else:
        yield (
            f"The machine drifted in {len(drifted)} of {count(len(judged), 'session')}"
            f"{_consequence(drifted['change'].abs().max())}."
        )


def _drifted(row) -> str:
    """Return a sentence on a session whose runs follow each other too closely for chance."""
    session = quoted(row.session)
    if row.change_low < 0 < row.change_high:
        return (
            f"The speed of the machine changed within session {session}, but not in one direction."
        )
    ends = f"{1 + row.change_low:.2f}–{1 + row.change_high:.2f}"
    return (
        f"The machine drifted in session {session}: a run took {1 + row.change:.2f} times as long "
        f"at its end ({ends}){_consequence(abs(row.change))}."
    )


def _consequence(change: float) -> str:
    """Return what a relative change of the speed within a session does to pairs of runs."""
    return ", which pairs of runs hardly notice" * bool(change < _HARDLY_NOTICED)
