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
from escala.report.tables.views import by_gradient
from escala.runtime.layout import Layout

POSITION = 10

#: Precision and recall that differ by no more than this in any class are called the same.
SAME_SCORES = 0.02
YES, NO = "Yes", "No"


def sentence(tables: Tables, name: str) -> str:
    """Answer for each configuration whether it takes less time than what it is compared with."""
    tables = by_gradient(tables)
    speedup = with_labels(tables["speedup"], tables)
    if speedup.empty:
        return "Nothing was compared: no configuration was trained beside a reference."
    of_reference = set(_configurations(tables["configurations"].dropna(subset=["reference"])))
    is_reference = pd.Series(
        [configuration in of_reference for configuration in _configurations(speedup)], speedup.index
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
    """Yield the sentences on one configuration, that on its main reference first."""
    main, *others = group.itertuples()
    if main.kind == "unavailable":
        yield f"Unavailable: {main.label} against {main.reference_label}: {quoted(main.reason)}."
    else:
        yield _main_answer(main, _scores(main, scores)) + _left_out(main)
    for row in others:
        if row.kind == "unavailable":
            yield f"Against {row.reference_label}: unavailable ({quoted(row.reason)})."
        else:
            yield _second_answer(row, _row_of_reference(row, speedup)) + _left_out(row)


def _left_out(row) -> str:
    """Return why some pairs have no ratio, as a sentence after those on the others."""
    return "" if pd.isna(row.reason) else f" {quoted(row.reason)}."


def _main_answer(row, scores: str) -> str:
    subject, reference = f"{_words(row)} ({row.label})", _words(row, "reference_")
    take = "takes" if row.ranks == 1 else "take"
    epoch = f"{row.ratio:.2f} of the time of {reference}"
    interval = _interval(row.ratio_low, row.ratio_high, row.pairs) + (
        ", estimated from a part of an epoch" * (row.kind == "estimated")
        + ", on shared cores" * bool(row.oversubscribed)
        + ", on different hosts of one kind" * bool(row.other_hosts)
    )
    if row.global_batch == row.reference_global_batch:
        return (
            f"**{_verdict(row.ratio_low, row.ratio_high, row.pairs)}: {subject} {take} {epoch}** "
            f"({interval}), with equal batches of {row.global_batch} rows{scores}."
        )
    batches = (
        f"different batches, {row.global_batch} rows in a step against {row.reference_global_batch}"
    )
    updates = row.reference_global_batch / row.global_batch
    an_epoch = f"An epoch takes {epoch} ({interval}), with {updates:.2g} times the updates{scores}."
    if row.time_to_target_kind == "unavailable":
        return (
            f"**No verdict: {subject} and {reference} have {batches}**, and the experiment sets no "
            f"`target_accuracy`. {an_epoch}"
        )
    ends = (
        row.time_to_target_ratio_low,
        row.time_to_target_ratio_high,
        row.time_to_target_pairs,
    )
    share = (
        "an unknown share" if pd.isna(row.time_to_target_ratio)
        else f"{row.time_to_target_ratio:.2f}"
    )  # fmt: skip
    return (
        f"**{_verdict(*ends)}: {subject} {take} {share} of the time of {reference} to an accuracy "
        f"of {row.target_accuracy:g}** ({_interval(*ends)}). They have "
        f"{batches}. {an_epoch}"
    )


def _second_answer(row, of_reference) -> str:
    """Compare a configuration with a reference other than the main one.

    `of_reference` is the row that compares this reference with the main one, or None.
    """
    reference = f"{_words(row, 'reference_')} ({row.reference_label})"
    verdict = _verdict(row.ratio_low, row.ratio_high, row.pairs)
    differ = bool(row.global_batch != row.reference_global_batch)
    said = (
        f"Set against {reference}, {'it takes' if row.ranks == 1 else 'they take'} "
        f"{row.ratio:.2f} of the time "
        f"({_interval(row.ratio_low, row.ratio_high, row.pairs)}): "
        + {YES: "less", NO: "more"}.get(verdict, verdict.lower())
        + f", with batches of {row.global_batch} and {row.reference_global_batch} rows" * differ
        + "."
    )
    if of_reference is None or of_reference.kind == "unavailable":
        return said
    ends = _interval(of_reference.ratio_low, of_reference.ratio_high, of_reference.pairs)
    main = _words(of_reference, "reference_")
    return f"{said} That one takes {of_reference.ratio:.2f} of the time of {main} ({ends})."


def _row_of_reference(row, speedup: pd.DataFrame):
    """Return the row that compares a row's reference with the main one, or None."""
    configuration = [getattr(row, f"reference_{part}") for part in Configuration._fields]
    is_it = [
        names == (row.dataset, row.workload, *configuration) for names in _configurations(speedup)
    ]
    return next(speedup[is_it].itertuples(), None)


def _words(row, of: str = "") -> str:
    """Describe a configuration, or with the prefix `reference_` its reference, by its processes."""
    layout, cores = Layout.parse(getattr(row, f"{of}layout")), getattr(row, f"{of}cores")
    each = int(cores) // layout.ranks
    if layout.ranks == 1:
        return f"one process {'on one core' if each == 1 else f'with {each} cores as threads'}"
    nodes = f" on {_in_words(layout.nodes)} nodes" if layout.nodes > 1 else ""
    return f"{_in_words(layout.ranks)} processes{nodes}{f' of {each} cores each' * (each > 1)}"


def _in_words(count: int) -> str:
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[count - 1] if count <= len(words) else str(count)


def _verdict(low: float, high: float, pairs: int) -> str:
    """Return Yes for a 95 % interval below 1 and No for one above it, as it is printed.

    An end that is open bounds nothing. Fewer than `PAIRS_FOR_INTERVAL` pairs have no such interval.
    """
    if pairs < PAIRS_FOR_INTERVAL:
        return f"No verdict from {count(pairs, 'pair')}"
    if pd.isna(low) and pd.isna(high):
        return "No verdict"
    if round(high, 2) < 1:
        return YES
    return NO if round(low, 2) > 1 else "Not distinguishable"


def _interval(low: float, high: float, pairs: int) -> str:
    if pairs == 1:
        return f"one pair; a verdict needs {PAIRS_FOR_INTERVAL}"
    enough = pairs >= PAIRS_FOR_INTERVAL
    ends = "–".join("unknown" if pd.isna(end) else f"{end:.2f}" for end in (low, high))
    kind = "95 % interval" if enough else "range"
    return f"{kind} {ends}, {pairs} pairs" + f"; a verdict needs {PAIRS_FOR_INTERVAL}" * (
        not enough
    )


def _scores(row, scores: pd.DataFrame) -> str:
    """Return a phrase on the largest score difference from the reference, with its interval."""
    keys = [*CONFIGURATION, "reference"]
    own = scores[(scores[keys] == [getattr(row, key) for key in keys]).all(axis=1)]
    known = score_differences(own)
    if known.empty:
        return ""
    apart = known[(known["low"] > SAME_SCORES) | (known["high"] < -SAME_SCORES)]
    if len(apart):
        named = (f"{row.rate} by {row.low:+.2f} to {row.high:+.2f}" for row in apart.itertuples())
        return f" and other scores: {joined(named)}"
    bound = known[["low", "high"]].abs().max(axis=1)
    if bound.max() <= SAME_SCORES:
        return f" and the same scores (to {bound.max():.3f} in every class)"
    widest = f"{bound.max():.3f} ({known['rate'][bound.idxmax()]})"
    if ((known["low"] <= 0) & (known["high"] >= 0)).all():
        return f" and scores that are equal within chance: no class differs by more than {widest}"
    return f" and scores that differ by at most {widest}"
