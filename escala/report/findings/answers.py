"""Answer whether a configuration takes less time than its main reference.

The answer is over sessions if there are enough, and followed by that of the current runs. Else it
is of these only, and says so.
If there are only ladders, tell what their changes leave of the time.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.verdicts import FASTER, NO_VERDICT, NOT_DISTINGUISHABLE, SLOWER
from escala.core.readable import in_words
from escala.report.findings import ladders
from escala.report.findings.compared import UNAVAILABLE, Compared, Headline, interval
from escala.report.findings.differences import COMPARED, over_repeats
from escala.report.findings.programs import times_the_rows
from escala.report.findings.verdicts import Answer, answers, compared
from escala.report.findings.words import Finding, Tables, a, of, quoted, sentence
from escala.report.tables.scores import ACCURACY
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
    if compared(tables).empty and not tables["ladder"].empty:
        for text in ladders.answers(tables):
            yield Finding(sentence(text), "ladder", "ladder")
        return
    for text in _texts(tables):
        yield Finding(sentence(text), "speedup", "speedup")


def _texts(tables: Tables) -> Iterator[str]:
    found, scores = list(answers(tables)), over_repeats(tables)
    if not found:
        yield "nothing was compared: no configuration was trained alongside its reference"
    for answer in found:
        yield _answer(answer, answer.row.headline, scores, tables)
    for answer in found:
        row = answer.row
        if row.headline.is_over_sessions:
            yield _answer(answer, row.in_call, scores, tables)
        if row.headline.verdict != UNAVAILABLE and not same_batch(row):
            yield _epoch_comparison(row, tables)
        yield from _qualified(answer)


def _answer(answer: Answer, found: Headline, scores: pd.DataFrame, tables: Tables) -> str:
    """Compare the configuration that answers with its main reference.

    Where an epoch is a whole run, it is the whole program that takes a time.
    """
    row, is_program = answer.row, answer.row.workload in programs(tables)
    subject, reference = quoted(row.label), quoted(row.reference_label)
    if found.verdict == UNAVAILABLE:
        return f"{UNAVAILABLE}: {subject} cannot be compared with {reference}: {quoted(row.reason)}"
    verdict = ANSWERS.get(found.verdict, found.brief)
    ratio, bounds = found.ratio.value, f"{found.when}{interval(found.ratio)}"
    fraction = "an unknown part of" if pd.isna(ratio) else f"{ratio:.2f} {of(ratio)}"
    if found.to_target:
        return (
            f"{verdict}: {subject} takes {fraction} the time of {reference} to accuracy "
            f"{row.target_accuracy:g} {bounds}"
        )
    if not same_batch(row):
        why = (
            "epochs were cut short" if row.kind == "estimated"
            else "their updates are not known" if is_program
            else "the experiment sets no `target_accuracy`"
        )  # fmt: skip
        return f"{verdict}: {subject} and {reference} have different batches, and {why}"
    start = f"{subject} takes"
    if row.workload in whole_runs(tables):
        start = f"as {subject} the whole program takes"
    rows = " for a row" if row.is_weak else ""
    text = f"{verdict}: {start} {fraction} the time of {reference}{rows} {bounds}"
    if row.is_weak:
        return f"{text}; the scaling is weak, with an efficiency of {row.efficiency:.2f}"
    if times := times_the_rows(row, tables):
        return f"{text}, for {float(f'{times:.3g}'):g} times the rows"
    if seen := found.smallest_seen:
        return f"{text}; a saving below {seen} % would not show"
    if found.verdict in ANSWERS:
        return text + (_reported if is_program else _accuracy)(row, scores)
    return text


def _epoch_comparison(row: Compared, tables: Tables) -> str:
    """Compare the times of epochs of different numbers of updates, if these are known."""
    ratio, updates = row.epochs, row.reference_global_batch / row.global_batch
    rest = f"with {float(f'{updates:.3g}'):g} times the updates"
    if row.workload in programs(tables):
        rest = f"with a batch {float(f'{1 / updates:.3g}'):g} times as large"
    return (
        f"{a(unit(tables, row.workload))} of {quoted(row.label)} takes {ratio.value:.2f} "
        f"{of(ratio.value)} the time{interval(ratio)}, {rest}"
    )


def _qualified(answer: Answer) -> Iterator[str]:
    """Tell what the answer leaves open: other configurations, and the best of too many."""
    found = answer.row.headline
    if found.cannot_tell_best:
        yield (
            f"{in_words(found.ratio.matches)} matches cannot tell the best of "
            f"{in_words(found.best_of)}: at least {in_words(found.needed)} are needed"
        )
    others = [(each.headline, each) for each in answer.rows]
    undecided = [
        (each.ratio, row)
        for each, row in others
        if each.verdict == NOT_DISTINGUISHABLE and each.ratio.value < min(1, found.ratio.value)
    ]
    if found.verdict == SLOWER and undecided:
        ratio, least = min(undecided, key=lambda each: each[0].value)
        yield f"undecided is {quoted(least.label)}: {ratio.value:.2f} of the time{interval(ratio)}"
    if len(others) == 1:
        return
    verdicts = [each.verdict for each, _ in others]
    among = f"of {len(others)} compared configurations"
    several = len({row.reference_label for row in answer.rows}) > 1
    if set(verdicts) - {NO_VERDICT, UNAVAILABLE}:
        less = verdicts.count(FASTER) or "none"
        yield f"{among}, {less} took less time than {'their' if several else 'the'} main reference"
    if NO_VERDICT in verdicts:
        yield f"{among}, {verdicts.count(NO_VERDICT)} got no verdict"
    if UNAVAILABLE in verdicts:
        yield f"{among}, {verdicts.count(UNAVAILABLE)} had no ratio to the main reference"


def _accuracy(row: Compared, scores: pd.DataFrame) -> str:
    """Return a phrase that compares the mean accuracy with that of the main reference.

    It is empty if there is no accuracy, or if the matches are too few. The accuracies are different
    if the interval of their difference is beyond `SAME_ACCURACY`, and the same if it is within.

    Parameters
    ----------
    scores : the result of `over_repeats`.
    """
    own = _row_differences(row, scores)
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


def _reported(row: Compared, scores: pd.DataFrame) -> str:
    """Return a phrase that compares the scores that a program reports, as `_accuracy` does.

    Their units are unknown, so the same are those that are equal in every match. The loss, which
    may be that of the rows of one rank, counts if nothing else is reported; best values do not.
    """
    own = _row_differences(row, scores)
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


def _row_differences(row: Compared, scores: pd.DataFrame) -> pd.DataFrame:
    """Return the differences of the scores of a row from its reference."""
    return scores[(scores[list(COMPARED)] == [getattr(row, key) for key in COMPARED]).all(axis=1)]
