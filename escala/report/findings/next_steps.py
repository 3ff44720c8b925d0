"""Tell what to do next: what to train with, and what would answer what is still open."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.best_use import NOT_LEARNT, PAYS, TIED, UNAVAILABLE, BestUse
from escala.analysis.verdicts import FASTER, NO_VERDICT
from escala.core.readable import counted
from escala.report.findings.best_use import answers
from escala.report.findings.certainty import disturbed, runs_ok
from escala.report.findings.gaps import has_failed, to_retry
from escala.report.findings.words import Finding, Tables, joined, quoted
from escala.report.tables.views import programs

POSITION = 55
SECTION = "next"

_PREDICTIONS = "docs/how-to/predict-times.md"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Advise on each task, then name what was not measured or predicted."""
    found = answers(tables)
    for answer in found:
        texts = _use(answer), _save_core_hours(answer), _decide(answer, tables, name)
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
        row, from_epochs = answer.closest.row, ""
        # Known where the times are of steps.
        if pd.notna(row["faster_from_epochs"]) and row["run_verdict"] != FASTER:
            from_epochs = f" for {counted(int(row['faster_from_epochs']), 'epoch')} or more"
        return f"Train with {quoted(answer.label)}{from_epochs}."
    if answer.advised == answer.names and answer.equals:
        either = joined(map(quoted, [answer.label, *answer.equals]))
        return f"Train with any of {either}: their times cannot be told apart."
    return f"Train with {quoted(answer.thriftiest)}: more was not found to save time."


def _save_core_hours(answer: BestUse) -> str:
    """Name the configuration that decidedly takes fewest core-hours, if the best use takes more."""
    if answer.verdict != PAYS or answer.resources.gpus:
        return ""
    # Times the core time of the best use, by direct comparison, at least.
    saves = {
        each.label: answer.resources.cores / each.resources.cores * each.ratio.low
        for each in answer.rivals
        if each.ratio_of != "target" and each.uses == "less"
    }
    most = max(saves, key=saves.__getitem__, default=None)
    return f"To save core-hours, train with {quoted(most)}." if most and saves[most] > 1 else ""


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
    if matches >= needed and (rival.row["stays_disturbed"] or disturbed(answer, tables)):
        return (
            f"Leave the machine idle and measure {label} again: put `-- --forcerun measure` at the "
            "end of the call of `escala`."
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
        "To tell them apart, measure in three or more sessions, hours apart: the interval of one "
        "session is widened by how they differ."
    )
