"""Tell what to do next: what to train with, and what would answer what is still open."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import pandas as pd

from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.analysis.verdicts import FASTER, NO_VERDICT, NOT_DISTINGUISHABLE, SLOWER
from escala.core.readable import in_words
from escala.report.figures.looks import significant
from escala.report.findings.certainty import disturbed, runs_ok
from escala.report.findings.compared import UNAVAILABLE, Compared, rows_of
from escala.report.findings.gaps import has_failed, to_retry
from escala.report.findings.verdicts import (
    Answer,
    against_main,
    answers,
    seconds_per_epoch,
    time_of,
)
from escala.report.findings.words import Finding, Tables, of, quoted
from escala.report.tables.views import programs, same_batch, unit

POSITION = 55
SECTION = "next"

_PREDICTIONS = "docs/how-to/predict-times.md"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Advise on each dataset and workload, then name what was not measured or predicted."""
    against, seconds = rows_of(against_main(tables)), seconds_per_epoch(tables)
    found = list(answers(tables))
    for answer in found:
        texts = _use(answer, against, seconds, tables), _decide(answer.row, tables, name)
        yield from (Finding(text, "speedup", "speedup") for text in texts if text)
    modelled = {answer.row.workload for answer in found} - set(programs(tables))
    if modelled and tables["predictions"].empty:
        yield Finding(
            "To predict layouts and networks that were not run, request the target `predictions`, "
            f"as in `{_PREDICTIONS}`.",
            "predictions",
        )


def _use(
    answer: Answer, against: list[Compared], seconds: Mapping[tuple, float], tables: Tables
) -> str:
    """Name what to train with, by the verdicts on all configurations of a dataset and workload.

    Parameters
    ----------
    against : the rows of `speedup` against the main references.
    seconds : of an epoch, by the values of `CONFIGURATION`.
    """
    row, verdict = answer.row, answer.row.headline.verdict
    if verdict == UNAVAILABLE:
        return ""
    # Epochs of other batches have other numbers of updates.
    alike = [
        each
        for each in against
        if (each.dataset, each.workload) == (row.dataset, row.workload)
        and each.kind != "unavailable"
        and same_batch(row, each)
    ]
    if answer.best is not None:
        return _train_with(row, answer.best, alike, seconds, unit(tables, row.workload))
    reference = min(alike, key=lambda each: seconds.get(each.reference_names, math.inf))
    label = quoted(reference.reference_label)
    if verdict == SLOWER:
        return f"Train with {label}: no other configuration was found to take less time."
    if verdict == NOT_DISTINGUISHABLE and row.cores > row.reference_cores:
        return f"Train with {label}: more cores were not found to save time."
    return ""


def _train_with(
    row: Compared, best: Compared, alike: list[Compared], seconds: Mapping[tuple, float], unit: str
) -> str:
    """Name the configuration of the least time, and that of the fewest core-hours.

    Parameters
    ----------
    row : the row that answers.
    best : the fastest of those that take less time than their reference.
    alike : the rows whose references have the batch of that of `row`.
    unit : the word for what `seconds` are of.
    """

    def reference_seconds(each: Compared) -> float:
        return seconds.get(each.reference_names, math.inf)

    rival, needed = min(alike, key=reference_seconds), time_of(best, seconds)
    if same_batch(best) and reference_seconds(rival) < needed:
        return (
            f"To save time, train with {quoted(rival.reference_label)}: its {unit} takes "
            f"{significant(reference_seconds(rival))} s, and that of {quoted(best.label)} "
            f"{significant(needed)} s."
        )
    text = f"To save time, train with {quoted(best.label)}"
    if best.names != row.names:
        ratio, reference = best.headline.ratio.value, quoted(best.reference_label)
        text += f", which takes {ratio:.2f} {of(ratio)} the time of {reference}"
    if best.efficiency_high >= 1 or best.headline.to_target:
        return f"{text}."
    cheapest = min(alike, key=lambda each: reference_seconds(each) * each.reference_cores)
    return f"{text}; to save core-hours, train with {quoted(cheapest.reference_label)}."


def _decide(row: Compared, tables: Tables, name: str) -> str:
    """Tell what would give a verdict on the configuration that answers, if it has none."""
    found, label, reference = row.headline, quoted(row.label), quoted(row.reference_label)
    retry = to_retry(name) if has_failed(row, tables) else ""
    is_open = found.verdict == NOT_DISTINGUISHABLE
    enough = found.ratio.matches >= VALUES_FOR_INTERVAL
    if (is_open or found.verdict == NO_VERDICT) and enough and disturbed(row, tables):
        return (
            f"Leave the machine idle and measure {label} again: put `ESCALA_MEASURE_AGAIN=1` "
            "before the call of `escala`, and `-- --forcerun train` at its end."
        )
    if found.verdict == UNAVAILABLE:
        remedy = f"remove what prevented it, and {retry or 'repeat the call'}"
        return f"To compare {label} with {reference}, {remedy}."
    if is_open and found.is_over_sessions:
        return f"For a narrower interval of {label} over sessions, measure more sessions."
    if is_open:
        return (
            f"To see savings half as large, {label} needs about four times its "
            f"{found.ratio.matches} matches: raise `repeats`."
        ) * bool(found.could_have_seen)
    if found.cannot_tell_best:
        return (
            f"To tell the best of {in_words(found.best_of)}, set `repeats` to {found.needed} or "
            "more, or compare fewer configurations."
        )
    if found.verdict in (FASTER, SLOWER):
        return ""
    if pd.isna(found.ratio.value) and not same_batch(row):
        target = "" if row.workload in programs(tables) else "set `target_accuracy`, or "
        return f"To judge {label}, {target}give {reference} the same global batch."
    if not enough:
        # Runs that were resumed stay without a match.
        unmatched = max(0, runs_ok(tables).get(row.names, 0) - found.ratio.matches)
        needed = VALUES_FOR_INTERVAL + unmatched
        more = retry or f"set `repeats` to {needed} or more, and repeat the call"
        return f"For a verdict on {label}, {more}."
    return ""
