"""Describe how sure the answer is: paired runs, sessions, noise, limits, and predictions."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.attribution import OFF_CORE, UNEXPLAINED, WHOLE
from escala.analysis.best_use import UNAVAILABLE, BestUse
from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.core.readable import counted, in_words
from escala.report.findings.context import Report, ratio_of
from escala.report.findings.names import Names
from escala.report.findings.why import parts_of_steps
from escala.report.findings.words import Finding, among, of, quote, sentence
from escala.report.tables.runs import NOTES_APART
from escala.report.tables.series import DIRECT, PRODUCT
from escala.report.tables.views import names_of_rows
from escala.runtime.layout import Layout

_NOTE_LETTERS = 240
#: A machine that runs nothing else changes by about a fifth within a session
#: (docs/decisions/sessions.md). Runs of a match follow each other, so they see little of it.
_HARDLY_NOTICED = 0.25


def evidence(report: Report) -> Iterator[Finding]:
    """Describe what the answer rests on."""
    numbers, times, ratios = runs_ok(report), "seconds_per_epoch", ("speedup", "speedup")
    for text, first in _disturbances(report):
        yield Finding(sentence(text), "runs", times, first)
    noted = runs_for_times(report).dropna(subset=["program_notes"])
    for workload, program_runs in noted.groupby("workload", sort=False):
        notes = program_runs["program_notes"].str.split(NOTES_APART).explode()
        for note, number in notes.value_counts(sort=False).items():
            text = f"{quote(workload)}, {counted(number, 'run')}: {quote(note, _NOTE_LETTERS)}."
            yield Finding(text, "runs")
    for answer in report.answers:
        if answer.verdict != UNAVAILABLE:
            for text in _rests_on(answer, report.names):
                yield Finding(sentence(text), "best_use", "speedup", first=True)
    for answer in report.answers:
        row = report.against_main.get(answer.names)
        if row is not None and row.kind != "unavailable":
            for text in _limits(row, numbers.get(answer.names, 0), report.names):
                yield Finding(sentence(text), *ratios)
    yield from (Finding(sentence(text), "ladder", "ladder") for text in _ladders(report))
    yield from (Finding(sentence(text), "runs", times) for text in _spread(report))
    for label, parts in parts_of_steps(report):
        for text in _clocks(report.names(label), parts):
            yield Finding(text, "attribution", "attribution")


def runs_ok(report: Report) -> dict[tuple, int]:
    """Return the number of runs that ended ok, by the values of `CONFIGURATION`."""
    table = report.tables["configurations"]
    return dict(zip(names_of_rows(table), table["runs_ok"].astype(int), strict=True))


def runs_for_times(report: Report) -> pd.DataFrame:
    """Return the current timing runs that ended ok, from which the ratios are."""
    runs = report.steps.table("runs")
    return runs[(runs["status"] == "ok") & runs["current"]]


def _disturbances(report: Report) -> Iterator[tuple[str, bool]]:
    """Yield what other work disturbed next to the runs, and whether the first screen tells it."""
    timed = runs_for_times(report)
    again, stay = (timed["earlier_attempts"] > 0).sum(), timed["disturbed"].fillna(False)
    unknown = timed.loc[timed["disturbed"].isna(), "disturbed_because"].dropna()
    if again:
        were = "was" if again == 1 else "were"
        yield (
            f"{counted(again, 'run')} {were} measured again, because other work disturbed a run of "
            "the same repeat",
            True,
        )
    if stay.any():
        because = quote(timed.loc[stay, "disturbed_because"].iloc[0])
        yield f"{counted(stay.sum(), 'run')} stayed disturbed, for example by {because}", True
    elif len(timed) and timed["disturbed"].notna().all():
        yield "no disturbance was detected", False
        if timed["kernel_slowdown"].isna().all():
            yield "only cores that others used are counted: a slower clock is not seen", False
        yield "other work on a GPU or on a network is not seen", False
    if len(unknown):
        yield (
            f"whether other work disturbed {counted(len(unknown), 'run')} is not known: "
            f"{quote(unknown.iloc[0])}",
            False,
        )


def _rests_on(answer: BestUse, names: Names) -> Iterator[str]:
    """Yield what the answer rests on: sessions, paired runs, and of how many it is the best."""
    rival, row = answer.closest, answer.closest.row
    matches, sessions = rival.ratio.matches, in_words(int(row["sessions"]))
    if row["stays_disturbed"]:
        yield (
            f"there is no verdict on {names(answer.label)}, because other work disturbed "
            f"{int(row['disturbed_matches'])} of {matches} paired runs to the end"
        )
        return
    number = in_words(matches)
    runs, are = ("run", "is") if matches == 1 else ("runs", "are")
    paired = (
        f"{number} {runs} of {names(answer.label)} {are} paired with {number} of "
        f"{names(rival.label)}"
    )
    if row["over_sessions"]:
        yield f"{paired}, in {sessions} sessions, and the interval covers how sessions differ"
    elif matches:
        widened = "; the interval is widened by how sessions differ elsewhere" * (matches > 1)
        yield f"{paired}, in {sessions} session{'s' * (row['sessions'] != 1)}{widened}"
    if (several := int(row["configurations"])) > 2:
        yield (
            f"{names.subject(answer.label, 'has')} the least time of {in_words(several)} "
            "configurations, and the intervals allow for that choice"
        )


def _limits(row, runs: int, names: Names) -> Iterator[str]:
    """Yield a sentence on each condition that limits a comparison.

    Parameters
    ----------
    row : of `speedup`, with labels.
    runs : of the configuration that ended ok.
    """
    label, paired = names(row.label), row.matches
    if not row.stays_disturbed:
        paired += row.disturbed_matches
        if row.disturbed_matches:
            yield (
                f"of {paired} paired runs of {label}, {row.disturbed_matches} stayed disturbed and "
                "count no more, whatever their times"
            )
    if paired < runs:
        yield (
            f"of {runs} runs of {label}, {runs - paired} had no run of the reference in the same "
            "session and repeat"
        )
    if not pd.isna(row.reason):
        yield f"some paired runs of {label} have no ratio: {quote(row.reason)}"
    if row.kind == "estimated":
        yield f"the times of {label} are estimated from a part of an epoch"
    if row.oversubscribed:
        yield f"processes of {label} shared cores"
    several = any(Layout.parse(layout).nodes > 1 for layout in (row.layout, row.reference_layout))
    if pd.isna(row.same_nodes) or (row.same_nodes and not several):
        return
    where = "the same nodes"
    if not row.same_nodes:
        where = "other nodes in some paired runs: the interval also covers how nodes differ"
        if not pd.isna(row.node_spread):
            where += f", here by up to {100 * row.node_spread:.1f} %"
    yield f"{label} and its reference began {row.seconds_apart:.0f} s apart, on {where}"


def _ladders(report: Report) -> Iterator[str]:
    """Yield sentences on ladders that disagree, and on the matches of all their changes."""
    rows = report.tables["ladder"]
    rows = rows[(rows["kind"] == "measured") & (rows["part"] != PRODUCT)]
    whole = rows[rows["part"] == DIRECT]
    for _, same in whole.groupby(["dataset", "workload", "before", "after"], sort=False):
        low, high = same.loc[same["ratio"].idxmin()], same.loc[same["ratio"].idxmax()]
        if low["ratio_high"] < high["ratio_low"]:
            yield (
                f"{quote(low['ladder'])} and {quote(high['ladder'])} have the same ends, but the "
                f"ranges of their ratios {low['ratio']:.2f} and {high['ratio']:.2f} do not overlap"
            )
    if rows.empty:
        return
    fewest, most = rows["matches"].min(), rows["matches"].max()
    number = f"{most:.0f}" if fewest == most else f"{fewest:.0f} to {most:.0f}"
    text = f"each change of a ladder is measured in {number} match{'' if most == 1 else 'es'}"
    if fewest < VALUES_FOR_INTERVAL:
        text += f"; its interval needs {in_words(VALUES_FOR_INTERVAL)}"
    yield text


def _spread(report: Report) -> Iterator[str]:
    """Yield sentences on the sessions of the runs and on the spread of their times."""
    timed = runs_for_times(report)
    if timed.empty:
        return
    sessions = counted(timed["session"].nunique(), "session")
    yield f"the times are from {sessions} (a session is one call), and no pair mixes sessions"
    for label, group in among(timed, report.shown).groupby("label", sort=False):
        seconds = group["train_seconds_per_epoch"]
        if len(seconds) > 1:
            yield (
                f"of the {len(seconds)} runs of {report.names(label)}, the slowest takes "
                f"{seconds.max() / seconds.min():.2f} times as long as the fastest"
            )


def _clocks(label: str, parts: pd.DataFrame) -> Iterator[str]:
    """Yield sentences on what a step lost of its cores, or has in no part, and on the clocks."""
    fractions = 100 * parts["fraction"].reindex([OFF_CORE, UNEXPLAINED])
    texts = {
        OFF_CORE: (
            "off the core",
            "at most {:.1f} % is off the core: its threads were ready, and others ran",
        ),
        UNEXPLAINED: ("in no part", "{:.1f} % is in none of its parts"),
    }
    for part, (where, known) in texts.items():
        if pd.isna(fractions[part]):
            yield f"How much of a step of {label} is {where} is unavailable."
        else:
            yield f"Of a step of {label}, {known.format(fractions[part])}."
    whole = parts.loc[WHOLE]
    if not pd.isna(whole["slowdown"]):
        runs = in_words(int(whole["runs"])) + (" run" if whole["runs"] == 1 else " runs")
        text = (
            f"In {runs} with clocks, a step of {label} takes {whole['slowdown']:.2f} times as long "
            "as in timing runs"
        )
        if not pd.isna(whole["low_seconds"]):
            low, high = 1000 * whole["low_seconds"], 1000 * whole["high_seconds"]
            text += f": {1000 * whole['seconds']:.1f} ms ({low:.1f}–{high:.1f})"
        yield f"{text}."


def noise(report: Report) -> Iterator[Finding]:
    """Describe the pilot, the noise floor of the references that findings show, and the drift."""
    pilot = report.table("pilot").dropna(subset=["needed"])
    if not pilot.empty:
        row = pilot.loc[pilot["needed"].idxmax()]
        yield Finding(
            f"In the pilot the ratio of {report.names(row['label'])} had a deviation of "
            f"{100 * row['deviation']:.1f} %, which requires {row['needed']} paired runs.",
            "pilot",
        )
        if row["cut"]:
            yield Finding(
                f"The experiment allowed {row['repeats']} repeats, so intervals may be wider than "
                "requested.",
                "pilot",
            )
    for row in among(report.table("noise"), report.shown).itertuples():
        yield Finding(sentence(_floor(row, report.names)), "noise")
    yield from (Finding(sentence(text), "drift") for text in _drift(report.tables["drift"]))


def _floor(row, names: Names) -> str:
    label = names(row.label)
    if row.kind == "unavailable":
        return f"the noise floor of {label} is unavailable: {quote(row.reason)}"
    if pd.isna(row.floor) and row.matches >= VALUES_FOR_INTERVAL:
        return f"there is no noise floor of {label}: other work disturbed too many of its runs"
    if pd.isna(row.floor):
        least, matches = in_words(VALUES_FOR_INTERVAL), in_words(row.matches)
        has = names.subject(row.label, "has")
        return f"a noise floor needs {least} paired runs, and {has} {matches} with itself"
    ratio = ratio_of(row)
    farther = max(ratio.high, 1 / ratio.low) - 1
    return (
        f"a run of {label} takes {ratio.value:.2f} {of(ratio.value)} the time of its duplicate"
        f"{names.interval(ratio)}: equal configurations may seem to differ by {100 * farther:.1f} %"
    )


def _drift(sessions: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on the sessions that were judged, if there are any."""
    judged = sessions[sessions["kind"] == "measured"]
    drifted = judged[judged["detected"].fillna(False)]
    several = counted(len(judged), "session")
    largest = drifted["change"].abs().max()
    hardly = ", which paired runs hardly notice" * bool(largest < _HARDLY_NOTICED)
    if judged.empty:
        return
    if drifted.empty:
        yield f"no drift of the machine was detected in {several}"
    elif len(drifted) > 1:
        yield f"the machine drifted in {len(drifted)} of {several}{hardly}"
    else:
        row = next(drifted.itertuples())
        session, low, high = quote(row.session), row.change_low, row.change_high
        if low < 0 < high:
            yield (
                f"the speed of the machine changed within session {session}, but not in one "
                "direction"
            )
        else:
            yield (
                f"the machine drifted in session {session}: a run took {1 + row.change:.2f} times "
                f"as long at its end ({1 + low:.2f}–{1 + high:.2f}){hardly}"
            )


def predictions(report: Report) -> Iterator[Finding]:
    """Describe the errors of the predictions, bounds of programs, and laws of scaling."""
    table = report.table("predictions")
    for text in _errors(table, report.names):
        yield Finding(text, "predictions", "seconds_per_epoch")
    bounds = table[table["basis"] == "bounds"]
    for row in bounds[(bounds["runs"] == 0) & (bounds["ranks"] > 1)].itertuples():
        yield Finding(
            f"A step of {report.names(row.label)}, not measured, is estimated to take between "
            f"{row.ratio_low:.2f} and {row.ratio_high:.2f} {of(row.ratio_high)} that of one "
            "process.",
            "predictions",
        )
    laws = report.tables["amdahl"]
    laws = laws[(laws["law_kind"] == "estimated") & (laws["reference"] == 1)]
    for row in among(laws, {answer.names for answer in report.answers}).itertuples():
        number = row.extrapolated_times * Layout.parse(row.reference_layout).ranks
        if row.law_over == "threads":
            number = row.extrapolated_times * row.reference_cores
        over = "threads" if row.law_over == "threads" else "processes"
        yield Finding(
            f"With {number:.0f} {over}, {quote(f'{row.strategy} {row.variant}')} would be "
            f"{row.extrapolated_speedup:.2f} times as fast as its reference, extrapolated by the "
            "universal scalability law.",
            "amdahl",
        )


def _errors(table: pd.DataFrame, names: Names) -> Iterator[str]:
    """Describe the errors of what was predicted, or bounded, and measured too."""
    both = table[table["error"].notna()]
    held = both[both["covered"].notna()]
    if len(held):
        runs, covered = counted(int(held["runs"].sum()), "run"), int(held["covered"].sum())
        yield (
            f"Of {runs} that the cost model did not see, {covered} took a time within its "
            "intervals."
        )
    if len(both):
        worst = both.loc[both["error"].abs().idxmax()]
        yield (
            f"The largest error of the cost model is that of {names(worst['label'])}: the "
            f"predicted time is {100 * abs(worst['error']):.0f} % "
            f"{'above' if worst['error'] > 0 else 'below'} the measured one."
        )
    measured = table[(table["basis"] == "bounds") & (table["runs"] > 0)]
    if len(measured):
        yield (
            f"Of {counted(int(measured['runs'].sum()), 'run')} of programs, "
            f"{int(measured['covered'].sum())} took a time within the bounds that were estimated "
            "without them."
        )
