"""Describe how sure the answer is: matches, sessions, spread, and what limits a comparison."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.attribution import OFF_CORE, UNEXPLAINED, WHOLE
from escala.analysis.best_use import UNAVAILABLE, BestUse
from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.core.readable import counted, in_words
from escala.report.findings.best_use import answers, shown, to_main
from escala.report.findings.compared import Compared
from escala.report.findings.steps import clocked
from escala.report.findings.words import Finding, Tables, among, quoted, with_labels
from escala.report.tables.ladder import DIRECT, PRODUCT
from escala.report.tables.runs import NOTES_APART
from escala.report.tables.views import names_of_rows, trained_by_steps
from escala.runtime.layout import Layout

POSITION = 40
SECTION = "sure"
_NOTE_LETTERS = 240


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe what the answer rests on."""
    numbers = runs_ok(tables)
    for text, first in _disturbances(tables):
        yield Finding(text, "runs", "seconds_per_epoch", first)
    yield from (Finding(text, "runs") for text in _notes(tables))
    for answer in answers(tables):
        if answer.verdict != UNAVAILABLE:
            for text in _rests_on(answer):
                yield Finding(text, "best_use", "speedup", first=True)
    for row in to_main(tables):
        if row.kind != "unavailable":
            texts = _limits(row, numbers.get(row.names, 0))
            yield from (Finding(text, "speedup", "speedup") for text in texts)
    yield from (Finding(text, "ladder", "ladder") for text in _ladders(tables))
    yield from (Finding(text, "runs", "seconds_per_epoch") for text in _spread(tables))
    for label, parts in clocked(tables):
        yield from (Finding(text, "attribution", "attribution") for text in _clocks(label, parts))


def runs_ok(tables: Tables) -> dict[tuple, int]:
    """Return the number of runs that ended ok, by the values of `CONFIGURATION`."""
    table = tables["configurations"]
    return dict(zip(names_of_rows(table), table["runs_ok"].astype(int), strict=True))


def disturbed(answer: BestUse, tables: Tables) -> int:
    """Return how many runs behind an answer other work disturbed, and still did in the end."""
    return int(among(_timed(tables), answer.behind)["disturbed"].fillna(False).sum())


def _timed(tables: Tables) -> pd.DataFrame:
    """Return the current timing runs that ended ok, from which the ratios are."""
    runs = trained_by_steps(tables)["runs"]
    return runs[(runs["status"] == "ok") & runs["current"]]


def _disturbances(tables: Tables) -> Iterator[tuple[str, bool]]:
    """Yield what other work disturbed next to the runs, and whether the first screen tells it."""
    timed = _timed(tables)
    again, stay = (timed["earlier_attempts"] > 0).sum(), timed["disturbed"].fillna(False)
    unknown = timed.loc[timed["disturbed"].isna(), "disturbed_because"].dropna()
    if again:
        were = "was" if again == 1 else "were"
        yield (
            f"{counted(again, 'run')} {were} measured again, because other work disturbed a run of "
            "the same repeat.",
            True,
        )
    if stay.any():
        because = quoted(timed.loc[stay, "disturbed_because"].iloc[0])
        yield f"{counted(stay.sum(), 'run')} stayed disturbed, for example by {because}.", True
    elif len(timed) and timed["disturbed"].notna().all():
        yield "No disturbance was detected.", False
        if timed["kernel_slowdown"].isna().all():
            yield "Only cores that others used are counted: a slower clock is not seen.", False
        yield "Other work on a GPU or on a network is not seen.", False
    if len(unknown):
        yield (
            f"Whether other work disturbed {counted(len(unknown), 'run')} is not known: "
            f"{quoted(unknown.iloc[0])}.",
            False,
        )


def _notes(tables: Tables) -> Iterator[str]:
    """Yield the notes on programs that ended well, each with its number of runs."""
    noted = _timed(tables).dropna(subset=["program_notes"])
    for workload, program_runs in noted.groupby("workload", sort=False):
        several = program_runs["program_notes"].str.split(NOTES_APART).explode()
        for note, number in several.value_counts(sort=False).items():
            yield f"{quoted(workload)}, {counted(number, 'run')}: {quoted(note, _NOTE_LETTERS)}."


def _rests_on(answer: BestUse) -> Iterator[str]:
    """Yield what the answer rests on: sessions, paired runs, and of how many it is the best."""
    label, rival = quoted(answer.label), answer.closest
    matches, sessions = rival.ratio.matches, int(rival.row["sessions"])
    runs = "run of" if matches == 1 else "runs of"
    are = "is paired" if matches == 1 else "are paired"
    number = in_words(matches)
    paired = f"{number.capitalize()} {runs} {label} {are} with {number} of {quoted(rival.label)}"
    if rival.row["stays_disturbed"]:
        yield (
            f"There is no verdict on {label}, because other work disturbed "
            f"{int(rival.row['disturbed_matches'])} of {matches} paired runs to the end."
        )
        return
    if rival.row["over_sessions"]:
        yield (
            f"{paired}, in {in_words(sessions)} sessions, and the interval covers how sessions "
            "differ."
        )
    elif matches:
        of = "one session" if sessions == 1 else f"{in_words(sessions)} sessions"
        widened = "; the interval is widened by how sessions differ elsewhere" * (matches > 1)
        yield f"{paired}, in {of}{widened}."
    if (several := int(rival.row["configurations"])) > 2:
        yield (
            f"{label} has the least time of {in_words(several)} configurations, and the intervals "
            "allow for that choice."
        )


def _limits(row: Compared, runs: int) -> Iterator[str]:
    """Yield a sentence on each condition that limits a comparison.

    Parameters
    ----------
    runs : of the configuration that ended ok.
    """
    label, paired = quoted(row.label), row.matches
    if not row.stays_disturbed:
        paired += row.disturbed_matches
        if row.disturbed_matches:
            yield (
                f"Of {paired} paired runs of {label}, {row.disturbed_matches} stayed disturbed and "
                "count no more, whatever their times."
            )
    if paired < runs:
        yield (
            f"Of {runs} runs of {label}, {runs - paired} had no run of the reference in the "
            "same session and repeat."
        )
    if not pd.isna(row.reason):
        yield f"Some matches of {label} have no ratio: {quoted(row.reason)}."
    if row.kind == "estimated":
        yield f"The times of {label} are estimated from a part of an epoch."
    if row.oversubscribed:
        yield f"Ranks of {label} shared cores."
    yield from _nodes(row)


def _nodes(row: Compared) -> Iterator[str]:
    """Yield a sentence on the nodes of the matches, unless all ran on one machine."""
    several = any(Layout.parse(each).nodes > 1 for each in (row.layout, row.reference_layout))
    if pd.isna(row.same_nodes) or (row.same_nodes and not several):
        return
    where, adds = "the same nodes", ""
    if not row.same_nodes:
        where, adds = "other nodes in some matches", ": the interval also covers how nodes differ"
    if adds and not pd.isna(row.node_spread):
        adds += f", here by up to {100 * row.node_spread:.1f} %"
    began = f"{quoted(row.label)} and its reference began {row.seconds_apart:.0f} s apart"
    yield f"{began}, on {where}{adds}."


def _ladders(tables: Tables) -> Iterator[str]:
    """Yield sentences on ladders that disagree, and on the matches of all their changes."""
    rows = tables["ladder"]
    rows = rows[(rows["kind"] == "measured") & (rows["part"] != PRODUCT)]
    whole = rows[rows["part"] == DIRECT]
    for _, same in whole.groupby(["dataset", "workload", "before", "after"], sort=False):
        low, high = same.loc[same["ratio"].idxmin()], same.loc[same["ratio"].idxmax()]
        if low["ratio_high"] < high["ratio_low"]:
            yield (
                f"{quoted(low['ladder'])} and {quoted(high['ladder'])} have the same ends, but the "
                f"ranges of their ratios {low['ratio']:.2f} and {high['ratio']:.2f} do not overlap."
            )
    if rows.empty:
        return
    fewest, most = rows["matches"].min(), rows["matches"].max()
    number = f"{most:.0f}" if fewest == most else f"{fewest:.0f} to {most:.0f}"
    text = f"Each change of a ladder is measured in {number} match{'' if most == 1 else 'es'}"
    if fewest < VALUES_FOR_INTERVAL:
        text += f"; its interval needs {in_words(VALUES_FOR_INTERVAL)}"
    yield f"{text}."


def _spread(tables: Tables) -> Iterator[str]:
    """Yield sentences on the sessions of the runs and on the spread of their times."""
    tables = trained_by_steps(tables)
    timed = with_labels(_timed(tables), tables)
    if timed.empty:
        return
    sessions = counted(timed["session"].nunique(), "session")
    yield f"The times are from {sessions} (a session is one call), and matches never mix sessions."
    for label, group in among(timed, shown(tables)).groupby("label", sort=False):
        seconds = group["train_seconds_per_epoch"]
        if len(seconds) > 1:
            yield (
                f"Of the {len(seconds)} runs of {quoted(label)}, the slowest takes "
                f"{seconds.max() / seconds.min():.2f} times as long as the fastest."
            )


def _clocks(label: str, parts: pd.DataFrame) -> Iterator[str]:
    """Yield sentences on what a step lost of its cores, or has in no part, and on the clocks."""
    fractions = 100 * parts["fraction"].reindex([OFF_CORE, UNEXPLAINED])
    if pd.isna(fractions[OFF_CORE]):
        yield f"How much of a step of {label} is off the core is unavailable."
    else:
        yield (
            f"Of a step of {label}, at most {fractions[OFF_CORE]:.1f} % is off the core: its "
            "threads were ready, and others ran."
        )
    if pd.isna(fractions[UNEXPLAINED]):
        yield f"How much of a step of {label} is in no part is unavailable."
    else:
        yield f"Of a step of {label}, {fractions[UNEXPLAINED]:.1f} % is in none of its parts."
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
