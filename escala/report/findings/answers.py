"""Answer whether a configuration takes less time than its main reference."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from escala.analysis.statistics import smallest_decrease
from escala.record.comparable import CONFIGURATION
from escala.report.findings.verdicts import (
    NOT_DISTINGUISHABLE,
    UNAVAILABLE,
    YES,
    answering,
    compared,
    headline,
    interval,
    of_epochs,
    processes,
    take,
)
from escala.report.findings.words import Finding, Tables, quoted, score_differences, sentence

POSITION = 10
SECTION = "answer"

#: Precision and recall that differ by no more than this in any class are called the same.
SAME_SCORES = 0.02


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Answer for each dataset and workload, then tell what qualifies the answer."""
    rows = compared(tables)
    if rows.empty:
        yield _finding("Nothing was compared: no configuration was trained beside its reference")
        return
    answers = list(answering(tables))
    yield from (_finding(_answer(row, tables["score_differences"])) for row in answers)
    for row in answers:
        if headline(row).verdict != UNAVAILABLE and not _same_batch(row):
            yield _finding(_of_an_epoch(row))
        same = (rows["dataset"] == row.dataset) & (rows["workload"] == row.workload)
        if same.sum() > 1:
            yield from map(_finding, _counts(rows[same]))


def _finding(text: str) -> Finding:
    return Finding(sentence(text), "speedup", "speedup")


def _answer(row, scores: pd.DataFrame) -> str:
    """Compare a configuration with the main reference."""
    found, subject = headline(row), f"{processes(row)} ({quoted(row.label)})"
    if found.verdict == UNAVAILABLE:
        return (
            f"{UNAVAILABLE}: {quoted(row.label)} has no ratio to {quoted(row.reference_label)}: "
            f"{quoted(row.reason)}"
        )
    reference = processes(row, "reference_")
    start = f"{found.verdict}: {subject}"
    if found.to_target:
        share = "an unknown share" if pd.isna(found.ratio) else f"{found.ratio:.2f}"
        return (
            f"{start} {take(row)} {share} of the time of {reference} to accuracy "
            f"{row.target_accuracy:g}{interval(found)}"
        )
    if not _same_batch(row):
        why = (
            "epochs were cut short" if row.kind == "estimated"
            else "the experiment sets no `target_accuracy`"
        )  # fmt: skip
        return f"{start} and {reference} have different batches, and {why}"
    text = f"{start} {take(row)} {found.ratio:.2f} of the time of {reference}{interval(found)}"
    if found.verdict == NOT_DISTINGUISHABLE:
        seen = math.ceil(100 * smallest_decrease(found.ratio, found.high))
        return f"{text}; could have seen {seen} %"
    return text + _scores(row, scores)


def _same_batch(row) -> bool:
    return bool(row.global_batch == row.reference_global_batch)


def _of_an_epoch(row) -> str:
    """Compare the times of epochs of different numbers of updates."""
    found, updates = of_epochs(row), row.reference_global_batch / row.global_batch
    return (
        f"an epoch of {quoted(row.label)} takes {found.ratio:.2f} of the time{interval(found)}, "
        f"with {float(f'{updates:.3g}'):g} times the updates"
    )


def _counts(rows: pd.DataFrame) -> Iterator[str]:
    """Count the compared configurations that take less time, and those without a ratio."""
    verdicts = [headline(row).verdict for row in rows.itertuples()]
    of_all = f"of {len(rows)} compared configurations"
    yield f"{of_all}, {verdicts.count(YES) or 'none'} took less time than the main reference"
    if UNAVAILABLE in verdicts:
        yield f"{of_all}, {verdicts.count(UNAVAILABLE)} had no ratio to the main reference"


def _scores(row, scores: pd.DataFrame) -> str:
    """Return a phrase that compares the scores with those of the main reference.

    Scores are different if an interval is beyond `SAME_SCORES`, and the same if all intervals are
    within. The phrase is empty if no difference is known.
    """
    keys = [*CONFIGURATION, "reference"]
    own = scores[(scores[keys] == [getattr(row, key) for key in keys]).all(axis=1)]
    known = score_differences(own)
    if known.empty:
        return ""
    if ((known["low"] > SAME_SCORES) | (known["high"] < -SAME_SCORES)).any():
        return ", with different scores"
    if known[["low", "high"]].abs().max(axis=None) <= SAME_SCORES:
        return ", with the same scores"
    if ((known["low"] <= 0) & (known["high"] >= 0)).all():
        return ", with no distinguishable score difference"
    return ", with slightly different scores"
