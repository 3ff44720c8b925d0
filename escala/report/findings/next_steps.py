"""Tell what to do next: what to train with, and what would answer what is still open."""

from __future__ import annotations

from collections.abc import Iterator

from escala.analysis.best_use import NOT_LEARNT, PAYS, TIED, UNAVAILABLE, BestUse
from escala.analysis.verdicts import NO_VERDICT
from escala.core.readable import in_words
from escala.report.findings.best_use import answers, seconds_per_epoch
from escala.report.findings.certainty import disturbed, runs_ok
from escala.report.findings.gaps import has_failed, to_retry
from escala.report.findings.words import Finding, Tables, joined, quoted
from escala.report.tables.views import programs

POSITION = 55
SECTION = "next"

_PREDICTIONS = "docs/how-to/predict-times.md"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Advise on each task, then name what was not measured or predicted."""
    found, seconds = answers(tables), seconds_per_epoch(tables)
    for answer in found:
        texts = _use(answer), _save_core_hours(answer, seconds), _decide(answer, tables, name)
        yield from (Finding(text, "best_use", "speedup") for text in texts if text)
    modelled = {answer.workload for answer in found} - set(programs(tables))
    if modelled and tables["predictions"].empty:
        yield Finding(
            "To predict layouts and networks that were not run, request the target `predictions`, "
            f"as in `{_PREDICTIONS}`.",
            "predictions",
        )


def _use(answer: BestUse) -> str:
    """Name what to train with; empty if nothing is decided."""
    if answer.verdict == NOT_LEARNT:
        return f"Find settings with which {quoted(answer.workload)} learns, then measure again."
    if answer.advised is None:
        return ""
    if answer.verdict != TIED:
        return f"Train with {quoted(answer.label)}."
    if answer.advised == answer.names:
        either = joined(map(quoted, [answer.label, *answer.equals]))
        return f"Train with any of {either}: their times cannot be told apart."
    return f"Train with {quoted(answer.thriftiest)}: more was not found to save time."


def _save_core_hours(answer: BestUse, seconds: dict[tuple, float]) -> str:
    """Name the configuration of the fewest core-hours, if it is another than the best use."""
    if answer.verdict != PAYS or answer.resources.gpus:
        return ""
    cost = {
        label: cores * seconds[names]
        for label, names, cores in (
            (answer.label, answer.names, answer.resources.cores),
            *((each.label, each.names, each.resources.cores) for each in answer.rivals),
        )
        if names in seconds
    }
    least = min(cost, key=cost.__getitem__, default=answer.label)
    return "" if least == answer.label else f"To save core-hours, train with {quoted(least)}."


def _decide(answer: BestUse, tables: Tables, name: str) -> str:
    """Tell what would give a verdict, if there is none."""
    rival, label = answer.closest, quoted(answer.label)
    retry = to_retry(name) if has_failed(answer, tables) else ""
    if answer.verdict == UNAVAILABLE:
        remedy = f"remove what prevented it, and {retry or 'repeat the call'}"
        return f"To compare {label} with {quoted(rival.label)}, {remedy}."
    if answer.verdict not in (TIED, NO_VERDICT):
        return ""
    needed, matches = int(rival.row["needed"]), rival.ratio.matches
    if rival.row["stays_disturbed"] or (matches >= needed and disturbed(answer, tables)):
        return (
            f"Leave the machine idle and measure {label} again: put `ESCALA_MEASURE_AGAIN=1` "
            "before the call of `escala`, and `-- --forcerun train` at its end."
        )
    if answer.verdict == NO_VERDICT:
        if retry:
            return f"For a verdict on {label}, {retry}."
        # Runs that were resumed stay without a match.
        unmatched = max(0, runs_ok(tables).get(answer.names, 0) - matches)
        return (
            f"For a verdict on {label}, set `repeats` to {needed + unmatched} or more, and repeat "
            "the call."
        )
    if rival.row["over_sessions"]:
        return f"For a narrower interval of {label}, measure in more sessions, hours apart."
    return (
        f"To tell them apart, measure in three or more sessions, hours apart; in one session, "
        f"{in_words(matches)} paired runs are widened by how sessions differ."
    )
