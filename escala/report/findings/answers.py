"""Answer whether a configuration takes less time than its main reference.

The answer is over sessions if there are enough, and followed by that of the current runs. Else it
is of these only, and says so.
If there are only ladders, tell what their changes leave of the time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.verdicts import FASTER, NO_VERDICT, NOT_DISTINGUISHABLE, SLOWER
from escala.report.findings import ladders
from escala.report.findings.differences import COMPARED, over_repeats
from escala.report.findings.programs import times_the_rows
from escala.report.findings.verdicts import (
    UNAVAILABLE,
    Answer,
    Headline,
    answers,
    cannot_tell_best,
    compared,
    could_have_seen,
    headline,
    in_brief,
    in_call,
    interval,
    of_epochs,
    processes,
    reference_of,
    take,
    when,
)
from escala.report.findings.words import Finding, Tables, a, in_words, quoted, sentence
from escala.report.tables.mean_scores import ACCURACY
from escala.report.tables.views import programs, same_batch, unit, whole_runs
from escala.training.marks import BEST

POSITION = 10
SECTION = "answer"

#: Whether a configuration takes less time, by its verdict.
ANSWERS = {FASTER: "yes", SLOWER: "no"}
#: Accuracies are called the same if the interval of their difference reaches no farther from 0.
SAME_ACCURACY = 0.02


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Answer for each dataset and workload, then tell what qualifies the answer."""
    rows = compared(tables)
    if rows.empty and not tables["ladder"].empty:
        yield from (Finding(sentence(text), "ladder", "ladder") for text in ladders.answers(tables))
        return
    if rows.empty:
        yield _finding("Nothing was compared: no configuration was trained beside its reference")
        return
    found, scores = list(answers(tables)), over_repeats(tables)
    for answer in found:
        yield _finding(_answer(answer, headline(answer.row), scores, tables))
    for answer in found:
        row = answer.row
        if headline(row).is_over_sessions:
            yield _finding(_answer(answer, in_call(row), scores, tables))
        if headline(row).verdict != UNAVAILABLE and not same_batch(row):
            yield _finding(_of_an_epoch(row, tables))
        yield from map(_finding, _qualified(answer))


def _finding(text: str) -> Finding:
    return Finding(sentence(text), "speedup", "speedup")


def _answer(answer: Answer, found: Headline, scores: pd.DataFrame, tables: Tables) -> str:
    """Compare the configuration that answers with its main reference.

    Where an epoch is a whole run, it is the whole program that takes a time.
    """
    row = answer.row
    several = len({each.reference_label for each in answer.rows}) > 1
    subject = f"{processes(row)} ({quoted(row.label)})"
    if found.verdict == UNAVAILABLE:
        return (
            f"{UNAVAILABLE}: {quoted(row.label)} has no ratio to {quoted(row.reference_label)}: "
            f"{quoted(row.reason)}"
        )
    reference = reference_of(row, several)
    verdict = ANSWERS.get(found.verdict, in_brief(found))
    start = f"{verdict}: {subject}"
    ratio, bounds = found.ratio.value, interval(found.ratio)
    if found.to_target:
        share = "an unknown share" if pd.isna(ratio) else f"{ratio:.2f}"
        return (
            f"{start} {take(row)} {share} of the time of {reference} to accuracy "
            f"{row.target_accuracy:g} {when(found)}{bounds}"
        )
    if not same_batch(row):
        why = (
            "epochs were cut short" if row.kind == "estimated"
            else "their updates are not known" if row.workload in programs(tables)
            else "the experiment sets no `target_accuracy`"
        )  # fmt: skip
        return f"{start} and {reference} have different batches, and {why}"
    if row.workload in whole_runs(tables):
        start = f"{verdict}: as {subject} the whole program takes"
    else:
        start = f"{start} {take(row)}"
    text = f"{start} {ratio:.2f} of the time of {reference} {when(found)}{bounds}"
    if times := times_the_rows(row, tables):
        return f"{text}, for {float(f'{times:.3g}'):g} times the rows"
    if seen := could_have_seen(found):
        return f"{text}; {seen}"
    if found.verdict in ANSWERS:
        is_program = row.workload in programs(tables)
        return text + (_reported if is_program else _accuracy)(row, scores)
    return text


def _of_an_epoch(row, tables: Tables) -> str:
    """Compare the times of epochs of different numbers of updates, if these are known."""
    ratio, updates = of_epochs(row), row.reference_global_batch / row.global_batch
    rest = f"with {float(f'{updates:.3g}'):g} times the updates"
    if row.workload in programs(tables):
        rest = f"with a batch {float(f'{1 / updates:.3g}'):g} times as large"
    return (
        f"{a(unit(tables, row.workload))} of {quoted(row.label)} takes {ratio.value:.2f} of the "
        f"time{interval(ratio)}, {rest}"
    )


def _qualified(answer: Answer) -> Iterator[str]:
    """Tell what the answer leaves open: other configurations, and the best of too many."""
    found = headline(answer.row)
    if cannot_tell_best(found):
        yield (
            f"{in_words(found.ratio.pairs)} pairs cannot tell the best of "
            f"{in_words(found.best_of)}: at least {in_words(found.needed)} are needed"
        )
    faster = [
        each
        for each in answer.rows
        if headline(each).verdict == NOT_DISTINGUISHABLE
        and headline(each).ratio.value < min(1, found.ratio.value)
    ]
    if found.verdict == SLOWER and faster:
        least = min(faster, key=lambda each: headline(each).ratio.value)
        yield (
            f"undecided is {quoted(least.label)}: {headline(least).ratio.value:.2f} of the time"
            f"{interval(headline(least).ratio)}"
        )
    if len(answer.rows) > 1:
        yield from _counts(answer.rows)


def _counts(rows: list) -> Iterator[str]:
    """Count the compared configurations that take less time, and those that cannot be judged."""
    verdicts = [headline(row).verdict for row in rows]
    of_all = f"of {len(rows)} compared configurations"
    reference = "their" if len({row.reference_label for row in rows}) > 1 else "the"
    if set(verdicts) - {NO_VERDICT, UNAVAILABLE}:
        less = verdicts.count(FASTER) or "none"
        yield f"{of_all}, {less} took less time than {reference} main reference"
    if NO_VERDICT in verdicts:
        yield f"{of_all}, {verdicts.count(NO_VERDICT)} got no verdict"
    if UNAVAILABLE in verdicts:
        yield f"{of_all}, {verdicts.count(UNAVAILABLE)} had no ratio to the main reference"


def _accuracy(row, scores: pd.DataFrame) -> str:
    """Return a phrase that compares the mean accuracy with that of the main reference.

    It is empty if there is no accuracy, or if the pairs are too few. The accuracies are different
    if the interval of their difference is beyond `SAME_ACCURACY`, and the same if it is within.

    Parameters
    ----------
    scores : the result of `over_repeats`.
    """
    own = _of_row(row, scores)
    own = own[own["score"] == ACCURACY]
    if own.empty:
        return ""
    low, high = own[["low", "high"]].iloc[0]
    if low > SAME_ACCURACY or high < -SAME_ACCURACY:
        return ", with different accuracy"
    if max(-low, high) <= SAME_ACCURACY:
        return ", with the same accuracy"
    if low <= 0 <= high:
        return ", with accuracy not distinguishable"
    return ", with slightly different accuracy"


def _reported(row, scores: pd.DataFrame) -> str:
    """Return a phrase that compares the scores that a program reports, as `_accuracy` does.

    Their units are unknown, so the same are those that are equal in every pair. The loss, which
    may be that of the rows of one rank, counts if nothing else is reported; best values do not.
    """
    own = _of_row(row, scores)
    own = own[~own["score"].str.startswith(BEST)]
    others = own[own["score"] != "loss"]
    own = own if others.empty else others
    if own.empty:
        return ""
    different = own[(own["low"] > 0) | (own["high"] < 0)]
    if len(different):
        return f", with a different {quoted(different['score'].iloc[0])}"
    if (own[["low", "high"]] == 0).all(axis=None):
        return ", with the same scores"
    return ", with scores not distinguishable"


def _of_row(row, scores: pd.DataFrame) -> pd.DataFrame:
    """Return the differences of the scores of a row from its reference."""
    is_own = (scores[list(COMPARED)] == [getattr(row, key) for key in COMPARED]).all(axis=1)
    return scores[is_own]
