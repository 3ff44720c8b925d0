"""Answer whether each configuration takes less time than its references."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.experiment.references import Configuration
from escala.record.comparable import CONFIGURATION
from escala.report.findings.words import (
    PAIRS_FOR_INTERVAL,
    Tables,
    count,
    joined,
    quoted,
    score_differences,
    with_labels,
)
from escala.report.tables.views import trained_by_steps
from escala.runtime.layout import Layout

POSITION = 10

#: Precision and recall that differ by no more than this in any class are called the same.
SAME_SCORES = 0.02
YES, NO, NOT_DISTINGUISHABLE = "Yes", "No", "Not distinguishable"


def sentence(tables: Tables, name: str) -> str:
    """Answer for each configuration whether it takes less time than its references."""
    tables = trained_by_steps(tables)
    speedup = with_labels(tables["speedup"], tables)
    if speedup.empty:
        return (
            "Nothing was compared: there is no configuration for which a reference was trained too."
        )
    references = set(_configurations(tables["configurations"].dropna(subset=["reference"])))
    is_reference = pd.Series(
        [configuration in references for configuration in _configurations(speedup)], speedup.index
    )
    compared = speedup if is_reference.all() else speedup[~is_reference]
    answers = [
        " ".join(_answer(group, speedup, tables["score_differences"]))
        for _, group in compared.groupby(list(CONFIGURATION), sort=False)
    ]
    return answers[0] if len(answers) == 1 else "\n".join(f"- {answer}" for answer in answers)


def _configurations(frame: pd.DataFrame) -> Iterator[tuple]:
    return frame[list(CONFIGURATION)].itertuples(index=False, name=None)


def _answer(group: pd.DataFrame, speedup: pd.DataFrame, scores: pd.DataFrame) -> Iterator[str]:
    """Yield the sentences on one configuration, first against the main reference."""
    main, *others = group.itertuples()
    if main.kind == "unavailable":
        yield f"Unavailable: {main.label} against {main.reference_label}: {quoted(main.reason)}."
    else:
        yield _main_answer(main, _scores(main, scores)) + _left_out(main)
    for row in others:
        if row.kind == "unavailable":
            yield f"Against {row.reference_label}: unavailable ({quoted(row.reason)})."
        else:
            yield _answer_to_other_reference(row, _row_of_reference(row, speedup)) + _left_out(row)


def _left_out(row) -> str:
    """Return a sentence on why some pairs have no ratio, or nothing if all have one."""
    return "" if pd.isna(row.reason) else f" {quoted(row.reason)}."


def _main_answer(row, scores: str) -> str:
    """Compare a configuration with the main reference.

    `scores` is the phrase of `_scores` for this configuration.
    """
    subject, reference = f"{_describe(row)} ({row.label})", _describe(row, "reference_")
    take = _take(row)
    share = f"{row.ratio:.2f} of the time of {reference}"
    interval = _interval_of_epochs(row)
    if row.global_batch == row.reference_global_batch:
        return (
            f"**{_verdict(row.ratio_low, row.ratio_high, row.pairs)}: {subject} {take} {share}** "
            f"({interval}), with equal batches of {row.global_batch} rows{scores}."
        )
    batches = (
        f"different batches ({row.global_batch} and {row.reference_global_batch} rows per step)"
    )
    updates = float(f"{row.reference_global_batch / row.global_batch:.3g}")
    an_epoch = f"An epoch takes {share} ({interval}), with {updates:g} times the updates{scores}."
    if row.time_to_target_kind == "unavailable":
        why = (
            "epochs were cut short, so there is no time to an accuracy" if row.kind == "estimated"
            else "the experiment sets no `target_accuracy`"
        )  # fmt: skip
        return f"**No verdict: {subject} and {reference} have {batches}**, and {why}. {an_epoch}"
    target_interval = (
        row.time_to_target_ratio_low,
        row.time_to_target_ratio_high,
        row.time_to_target_pairs,
    )
    share_to_target = (
        "an unknown share" if pd.isna(row.time_to_target_ratio)
        else f"{row.time_to_target_ratio:.2f}"
    )  # fmt: skip
    return (
        f"**{_verdict(*target_interval)}: {subject} {take} {share_to_target} of the time of "
        f"{reference} to an accuracy of {row.target_accuracy:g}** "
        f"({_interval(*target_interval)}). They have {batches}. {an_epoch}"
    )


def _answer_to_other_reference(row, row_of_reference) -> str:
    """Compare a configuration with a reference other than the main one.

    `row_of_reference` compares this reference with the main one; None if there is no such row.
    """
    subject, reference = _describe(row), f"{_describe(row, 'reference_')} ({row.reference_label})"
    interval = _interval_of_epochs(row)
    verdict = _verdict(row.ratio_low, row.ratio_high, row.pairs)
    start = f"{subject[0].upper()}{subject[1:]} {_take(row)}"
    same_batch = bool(row.global_batch == row.reference_global_batch)
    if same_batch and verdict in (YES, NO):
        more_or_less = "less" if verdict == YES else "more"
        text = f"{start} {more_or_less} time than {reference}: {row.ratio:.2f} of it ({interval})"
    else:
        text = f"{start} {row.ratio:.2f} of the time per epoch of {reference} ({interval})"
        open_verdict = same_batch and verdict == NOT_DISTINGUISHABLE
        text += "; the two times are not distinguishable" * open_verdict
    if not same_batch:
        text += f", with batches of {row.global_batch} and {row.reference_global_batch} rows"
    if row_of_reference is None or row_of_reference.kind == "unavailable":
        return f"{text}."
    bounds = row_of_reference.ratio_low, row_of_reference.ratio_high, row_of_reference.pairs
    return (
        f"{text}. That reference itself takes {row_of_reference.ratio:.2f} of the time of "
        f"{_describe(row_of_reference, 'reference_')} ({_interval(*bounds)})."
    )


def _row_of_reference(row, speedup: pd.DataFrame):
    """Return the row that compares a row's reference with the main one, or None."""
    configuration = [getattr(row, f"reference_{part}") for part in Configuration._fields]
    reference = (row.dataset, row.workload, *configuration)
    is_of_reference = [names == reference for names in _configurations(speedup)]
    return next(speedup[is_of_reference].itertuples(), None)


def _describe(row, prefix: str = "") -> str:
    """Describe a row's configuration by its processes.

    With the prefix `reference_`, describe the reference of the row.
    """
    layout, cores = Layout.parse(getattr(row, f"{prefix}layout")), getattr(row, f"{prefix}cores")
    each = int(cores) // layout.ranks
    if layout.ranks == 1:
        return f"one process {'on one core' if each == 1 else f'with {each} cores as threads'}"
    cores_each = f" with {each} cores each" if each > 1 else ""
    nodes = f" on {_in_words(layout.nodes)} nodes" if layout.nodes > 1 else ""
    return f"{_in_words(layout.ranks)} processes{cores_each}{nodes}"


def _take(row) -> str:
    return "takes" if row.ranks == 1 else "take"


def _in_words(count: int) -> str:
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[count - 1] if count <= len(words) else str(count)


def _verdict(low: float, high: float, pairs: int) -> str:
    """Return the verdict from the 95 % interval of a ratio of times, rounded as it is printed.

    It is `YES` if the interval is below 1, `NO` if it is above 1, and `NOT_DISTINGUISHABLE` if it
    contains 1. There is no verdict from fewer than `PAIRS_FOR_INTERVAL` pairs. If an end is
    unknown (NaN), there is a verdict only if the other end alone decides for `YES` or `NO`.
    """
    if pairs < PAIRS_FOR_INTERVAL:
        return f"No verdict from {count(pairs, 'pair')}"
    if round(high, 2) < 1:
        return YES
    if round(low, 2) > 1:
        return NO
    return "No verdict" if pd.isna(low) or pd.isna(high) else NOT_DISTINGUISHABLE


def _interval(low: float, high: float, pairs: int) -> str:
    """Return an interval, or with too few pairs the range, and the number of pairs."""
    if pairs == 1:
        return f"one pair; a verdict needs {PAIRS_FOR_INTERVAL}"
    ends = "–".join("unknown" if pd.isna(end) else f"{end:.2f}" for end in (low, high))
    if pairs < PAIRS_FOR_INTERVAL:
        return f"range {ends}, {pairs} pairs; a verdict needs {PAIRS_FOR_INTERVAL}"
    return f"95 % interval {ends}, {pairs} pairs"


def _interval_of_epochs(row) -> str:
    """Return the interval of a ratio of epoch times, and what limits the comparison."""
    return _interval(row.ratio_low, row.ratio_high, row.pairs) + (
        ", estimated from a part of an epoch" * (row.kind == "estimated")
        + ", on shared cores" * bool(row.oversubscribed)
        + ", on different hosts of one kind" * bool(row.other_hosts)
    )


def _scores(row, scores: pd.DataFrame) -> str:
    """Return a phrase that compares the scores with those of the main reference.

    It names each precision and recall that differs by more than `SAME_SCORES`. If there are none,
    it gives a bound of all differences. It is empty if no difference is known.
    """
    keys = [*CONFIGURATION, "reference"]
    own = scores[(scores[keys] == [getattr(row, key) for key in keys]).all(axis=1)]
    known = score_differences(own)
    if known.empty:
        return ""
    different = known[(known["low"] > SAME_SCORES) | (known["high"] < -SAME_SCORES)]
    if len(different):
        rates = (
            f"{row.rate} by {row.low:+.2f} to {row.high:+.2f}" for row in different.itertuples()
        )
        return f" and different scores: {joined(rates)}"
    bound = known[["low", "high"]].abs().max(axis=1)
    if bound.max() <= SAME_SCORES:
        return f" and the same scores (within {bound.max():.3f} in every class)"
    widest = f"{bound.max():.3f} ({known['rate'][bound.idxmax()]})"
    if ((known["low"] <= 0) & (known["high"] >= 0)).all():
        return f" and no distinguishable score difference: no class differs by more than {widest}"
    return f" and scores that differ by at most {widest}"
