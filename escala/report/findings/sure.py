"""Describe how sure the answer is: paired runs, sessions, noise, limits, and predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from escala.analysis.attribution import OFF_CORE, UNEXPLAINED, WHOLE
from escala.analysis.best_use import UNAVAILABLE
from escala.analysis.statistics import MATCHES_FOR_INTERVAL
from escala.core.readable import in_words, with_interval, with_noun
from escala.experiment.runs import MAIN
from escala.report.findings.context import Report, ratio_of
from escala.report.findings.why import parts_of_steps
from escala.report.findings.words import Finding, Names, among, of_or_times, quote
from escala.report.tables.amdahl import THREADS
from escala.report.tables.runs import NOTES_APART
from escala.report.tables.series import DIRECT, PRODUCT
from escala.report.tables.views import names_of_rows
from escala.runtime.layout import Layout

_NOTE_LETTERS = 240
#: A machine that runs nothing else changes by about a fifth within a session
#: (docs/decisions/sessions.md). Paired runs follow each other, so this change hardly
#: affects their ratio.
_HARDLY_NOTICED = 0.25


def runs_ok(report: Report) -> dict[tuple, int]:
    """Return the number of runs that ended ok, by the values of `CONFIGURATION`."""
    table = report.tables["configurations"]
    return dict(zip(names_of_rows(table), table["runs_ok"].astype(int), strict=True))


def runs_for_times(report: Report) -> pd.DataFrame:
    """Return the current timing runs that ended ok, with labels, but without fits."""
    runs = report.without_fits.table("runs")
    return runs[(runs["status"] == "ok") & runs["current"]]


def disturbances(report: Report) -> Iterator[Finding]:
    """Tell which runs were disturbed by other work, and which disturbances cannot be seen."""
    timed, evidence = runs_for_times(report), ("runs", "seconds_per_epoch")
    repeated, is_disturbed = (timed["earlier_attempts"] > 0).sum(), timed["disturbed"].fillna(False)
    unknown = timed.loc[timed["disturbed"].isna(), "disturbed_because"].dropna()
    if repeated:
        were = "was" if repeated == 1 else "were"
        text = (
            f"{with_noun(repeated, 'run')} {were} measured again, because other work disturbed a "
            "run of the same repeat"
        )
        yield Finding(text, *evidence, first=True)
    if is_disturbed.any():
        because = quote(timed.loc[is_disturbed, "disturbed_because"].iloc[0])
        text = f"{with_noun(is_disturbed.sum(), 'run')} stayed disturbed, for example by {because}"
        yield Finding(text, *evidence, first=True)
    elif len(timed) and timed["disturbed"].notna().all():
        where = " in the runs that count" if repeated else ""
        yield Finding(f"no disturbance was detected{where}", *evidence)
        if timed["kernel_slowdown"].isna().all():
            text = "only work of others on cores is counted: a slower clock is not seen"
            yield Finding(text, *evidence)
        yield Finding("other work on a GPU or on a network is not seen", *evidence)
    if len(unknown):
        text = f"whether other work disturbed {with_noun(len(unknown), 'run')} is not known: "
        yield Finding(text + quote(unknown.iloc[0]), *evidence)


def notes(report: Report) -> Iterator[Finding]:
    """Count the notes on the runs of each program."""
    with_notes = runs_for_times(report).dropna(subset=["program_notes"])
    for workload, runs in with_notes.groupby("workload", sort=False):
        texts = runs["program_notes"].str.split(NOTES_APART).explode()
        for note, number in texts.value_counts(sort=False).items():
            text = f"{quote(workload)}, {with_noun(number, 'run')}: {quote(note, _NOTE_LETTERS)}"
            yield Finding(text, "runs")


def evidence(report: Report) -> Iterator[Finding]:
    """Tell the evidence for each answer: sessions, paired runs, and the number of alternatives."""
    names, texts, choices = report.names, [], []
    for answer in report.answers:
        rival, row = answer.closest, answer.closest.row
        matches, sessions = rival.ratio.matches, in_words(int(row["sessions"]))
        if answer.verdict == UNAVAILABLE:
            continue
        if row["stays_disturbed"]:
            texts.append(
                f"there is no verdict on {names(answer.label)}, because other work disturbed "
                f"{int(row['disturbed_matches'])} of {matches} paired runs to the end"
            )
            continue
        number, configurations = in_words(matches), int(row["configurations"])
        runs, are = ("run", "is") if matches == 1 else ("runs", "are")
        pairs = (
            f"{number} {runs} of {names(answer.label)} {are} paired with {number} of "
            f"{names(rival.label)}, in {sessions} session{'s' * (row['sessions'] != 1)}"
        )
        if row["over_sessions"]:
            texts.append(f"{pairs}, and the interval covers how sessions differ")
        elif matches:
            widened = "; the interval is widened by how sessions differ elsewhere" * (matches > 1)
            texts.append(f"{pairs}{widened}")
        if configurations > 2:
            choices.append(
                f"{names.subject(answer.label, 'has')} the least time of "
                f"{in_words(configurations)} configurations, and the intervals allow for that "
                "choice"
            )
    yield from (Finding(text, "best_use", "speedup", first=True) for text in texts)
    yield from (Finding(text, "best_use", "speedup") for text in choices)


def limits(report: Report) -> Iterator[Finding]:
    """Name each condition that limits the comparison of a best use with its main reference."""
    number_ok = runs_ok(report)
    for answer in report.answers:
        row = report.against_main.get(answer.names)
        if row is not None and row.kind != "unavailable":
            for text in _limits(row, number_ok.get(answer.names, 0), report.names):
                yield Finding(text, "speedup", "speedup")


def _limits(row, runs_ok: int, names: Names) -> Iterator[str]:
    """Yield a clause on each condition that limits a comparison.

    Parameters
    ----------
    row : of `speedup`, with labels.
    runs_ok : the number of runs of the configuration that ended ok.
    """
    label, paired = names(row.label), row.matches
    if not row.stays_disturbed:
        # `matches` leaves out disturbed paired runs.
        paired += row.disturbed_matches
        if row.disturbed_matches:
            yield (
                f"of {paired} paired runs of {label}, {row.disturbed_matches} stayed disturbed and "
                "do not count, whatever their times"
            )
    if paired < runs_ok:
        yield (
            f"of {runs_ok} runs of {label}, {runs_ok - paired} had no run of the reference in the "
            "same session and repeat"
        )
    if not pd.isna(row.reason):
        yield f"some paired runs of {label} have no ratio: {quote(row.reason)}"
    if row.kind == "estimated":
        yield f"the times of {label} are estimated from a part of an epoch"
    if row.oversubscribed:
        yield f"processes of {label} shared cores"
    nodes = max(Layout.parse(layout).nodes for layout in (row.layout, row.reference_layout))
    if pd.isna(row.same_nodes) or (row.same_nodes and nodes == 1):
        return
    where = "the same nodes"
    if not row.same_nodes:
        where = "other nodes in some paired runs: the interval also covers how nodes differ"
        if not pd.isna(row.node_spread):
            where += f", here by up to {100 * row.node_spread:.1f} %"
    yield f"{label} and its reference began {row.seconds_apart:.0f} s apart, on {where}"


def ladders(report: Report) -> Iterator[Finding]:
    """Name ladders with equal ends and different ratios. Tell the paired runs of a change."""
    rows = report.tables["ladder"]
    rows = rows[(rows["kind"] == "measured") & (rows["part"] != PRODUCT)]
    ends = rows[rows["part"] == DIRECT]
    for _, same in ends.groupby(["dataset", "workload", "before", "after"], sort=False):
        low, high = same.loc[same["ratio"].idxmin()], same.loc[same["ratio"].idxmax()]
        if low["ratio_high"] < high["ratio_low"]:
            text = (
                f"{quote(low['ladder'])} and {quote(high['ladder'])} have the same ends, but the "
                f"ranges of their ratios {low['ratio']:.2f} and {high['ratio']:.2f} do not overlap"
            )
            yield Finding(text, "ladder", "ladder")
    if rows.empty:
        return
    fewest, most = rows["matches"].min(), rows["matches"].max()
    number = f"{most:.0f}" if fewest == most else f"{fewest:.0f} to {most:.0f}"
    text = f"each change of a ladder is measured in {number} paired run{'' if most == 1 else 's'}"
    if fewest < MATCHES_FOR_INTERVAL:
        text += f"; an interval needs {in_words(MATCHES_FOR_INTERVAL)}"
    yield Finding(text, "ladder", "ladder")


def spread(report: Report) -> Iterator[Finding]:
    """Describe the sessions of the runs and the spread of their times."""
    timed = runs_for_times(report)
    if timed.empty:
        return
    sessions = with_noun(timed["session"].nunique(), "session")
    text = f"the times are from {sessions} (a session is one call), and no pair mixes sessions"
    yield Finding(text, "runs", "seconds_per_epoch")
    for label, group in among(timed, report.shown).groupby("label", sort=False):
        seconds = group["train_seconds_per_epoch"]
        if len(seconds) > 1:
            text = (
                f"of the {len(seconds)} runs of {report.names(label)}, the slowest takes "
                f"{seconds.max() / seconds.min():.2f} times as long as the fastest"
            )
            yield Finding(text, "runs", "seconds_per_epoch")


def clocks(report: Report) -> Iterator[Finding]:
    """Tell how much of a step is off the core or in no part, and how clocks slow a step down."""
    for label, parts in parts_of_steps(report):
        whole, step = parts.loc[WHOLE], f"a step of {report.names(label)}"
        off_core, unexplained = (
            100 * parts["fraction"].get(part, math.nan) for part in (OFF_CORE, UNEXPLAINED)
        )
        texts = [
            f"of {step}, at most {off_core:.1f} % is off the core: its threads were ready, and "
            "other threads ran"
            if pd.notna(off_core)
            else f"how much of {step} is off the core is unavailable",
            f"of {step}, {unexplained:.1f} % is in none of its parts"
            if pd.notna(unexplained)
            else f"how much of {step} is in no part is unavailable",
        ]
        if not pd.isna(whole["slowdown"]):
            runs = in_words(int(whole["runs"])) + (" run" if whole["runs"] == 1 else " runs")
            text = (
                f"in {runs} with clocks, {step} takes {whole['slowdown']:.2f} times as long as in "
                "timing runs"
            )
            if not pd.isna(whole["low_seconds"]):
                seconds = whole[["seconds", "low_seconds", "high_seconds"]]
                text += f": {with_interval(*1000 * seconds, '.1f', ' ms', 'range ')}"
            texts.append(text)
        yield from (Finding(text, "attribution", "attribution") for text in texts)


def looks(report: Report) -> Iterator[Finding]:
    """Tell why a session stopped by its own decision, and after how many repeats."""
    looks = report.tables["looks"]
    if len(ended := looks.dropna(subset=["ended"])):
        number, times = int(ended["repeats"].iloc[-1]), looks["repeats"].nunique()
        repeats = f"{in_words(number)} repeat{'s' * (number != 1)}"
        because = ended["ended"].iloc[-1]
        yield Finding(f"the session stopped after {repeats}, because {because}", "looks")
        if times > 1:
            text = f"it looked {in_words(times)} times, and the level of intervals allows for it"
            yield Finding(text, "looks")


def noise(report: Report) -> Iterator[Finding]:
    """Tell the noise floor of the references that findings show."""
    names = report.names
    for row in among(report.table("noise"), report.shown).itertuples():
        label = names(row.label)
        if row.kind == "unavailable":
            text = f"the noise floor of {label} is unavailable: {quote(row.reason)}"
        elif pd.isna(row.floor) and row.matches >= MATCHES_FOR_INTERVAL:
            text = f"there is no noise floor of {label}: other work disturbed too many of its runs"
        elif pd.isna(row.floor):
            least, matches = in_words(MATCHES_FOR_INTERVAL), in_words(row.matches)
            has = names.subject(row.label, "has")
            text = f"a noise floor needs {least} paired runs, and {has} {matches} with itself"
        else:
            ratio = ratio_of(row)
            farther = 100 * (max(ratio.high, 1 / ratio.low) - 1)
            text = (
                f"a run of {label} takes {names.fraction(ratio, 'time of its duplicate')}: equal "
                f"configurations may seem to differ by {farther:.1f} %"
            )
        yield Finding(text, "noise")


def drift(report: Report) -> Iterator[Finding]:
    """Tell whether the machine drifted in the sessions with enough runs for a judgement."""
    sessions = report.tables["drift"]
    judged = sessions[sessions["kind"] == "measured"]
    if judged.empty:
        return
    drifted, number = judged[judged["detected"].fillna(False)], with_noun(len(judged), "session")
    largest = drifted["change"].abs().max()
    hardly = ", which paired runs hardly notice" * bool(largest < _HARDLY_NOTICED)
    if drifted.empty:
        text = f"no drift of the machine was detected in {number}"
    elif len(drifted) > 1:
        text = f"the machine drifted in {len(drifted)} of {number}{hardly}"
    else:
        row = next(drifted.itertuples())
        session, low, high = quote(row.session), row.change_low, row.change_high
        text = (
            f"the speed of the machine changed within session {session}, but not in one direction"
        )
        if not low < 0 < high:
            ends = 1 + row.change, 1 + low, 1 + high
            times = with_interval(*ends, ".2f", " times as long at its end")
            text = f"the machine drifted in session {session}: a run took {times}{hardly}"
    yield Finding(text, "drift")


def predictions(report: Report) -> Iterator[Finding]:
    """Compare predictions and bounds with measured times, then tell bounds without measured times.

    Predictions are for neural networks, and bounds for programs.
    """
    table, evidence = report.table("predictions"), ("predictions", "seconds_per_epoch")
    predicted = table[table["error"].notna()]
    validated = predicted[predicted["covered"].notna()]
    if len(validated):
        text = (
            f"of {with_noun(int(validated['runs'].sum()), 'run')} that the cost model did not "
            f"see, {int(validated['covered'].sum())} took a time within the intervals"
        )
        yield Finding(text, *evidence)
    if len(predicted):
        worst = predicted.loc[predicted["error"].abs().idxmax()]
        text = (
            f"the largest error of the cost model is that of {report.names(worst['label'])}: the "
            f"predicted time is {100 * abs(worst['error']):.0f} % "
            f"{'above' if worst['error'] > 0 else 'below'} the measured time"
        )
        yield Finding(text, *evidence)
    bounds = table[table["basis"] == "bounds"]
    if len(measured := bounds[bounds["runs"] > 0]):
        text = (
            f"of {with_noun(int(measured['runs'].sum()), 'run')} of programs, "
            f"{int(measured['covered'].sum())} took a time within the bounds, which were "
            "estimated without these runs"
        )
        yield Finding(text, *evidence)
    for row in bounds[(bounds["runs"] == 0) & (bounds["ranks"] > 1)].itertuples():
        yield Finding(
            f"a step of {report.names(row.label)}, not measured, is estimated to take between "
            f"{row.ratio_low:.2f} and {row.ratio_high:.2f} {of_or_times(row.ratio_high)} a step of "
            "one process",
            "predictions",
        )


def laws(report: Report) -> Iterator[Finding]:
    """Tell the speed-up that laws of scaling expect with more processes or threads."""
    table = report.tables["amdahl"]
    fitted = table[(table["law_kind"] == "estimated") & (table["reference"] == MAIN)]
    for row in among(fitted, {answer.names for answer in report.answers}).itertuples():
        over, at_reference = "processes", Layout.parse(row.reference_layout).ranks
        if row.law_over == THREADS:
            over, at_reference = "threads", row.reference_cores
        number = row.extrapolated_times * at_reference
        yield Finding(
            f"with {number:.0f} {over}, {quote(f'{row.strategy} {row.variant}')} would be "
            f"{row.extrapolated_speedup:.2f} times as fast as its reference, extrapolated by the "
            "universal scalability law",
            "amdahl",
        )
