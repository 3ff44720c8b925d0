"""The table of ratios of each configuration to each reference, in paired runs.

A ratio is that of the question "what will it be next time": with sessions hours apart it is over
sessions, and with too few of them it is that of the newest paired run of each repeat, whose
interval is widened by how sessions differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

import numpy as np

from escala.analysis.comparable import (
    CONFIGURATION,
    Matched,
    Measurement,
    left_out,
    matched,
    newest_of_repeats,
    work,
)
from escala.analysis.statistics import (
    LEVEL,
    SESSIONS_FOR_INTERVAL,
    VALUES_FOR_INTERVAL,
    Interval,
    deviation_of_sessions,
    matches_needed,
    next_time_interval,
    ratio_interval,
    sessions_interval,
)
from escala.analysis.verdicts import NO_VERDICT, Verdict, leave_out_disturbed, verdict
from escala.experiment.runs import Configuration, compared_with
from escala.report.tables import base, together
from escala.report.tables.base import Evidence, Tables
from escala.report.tables.runs import time_to_target

#: Decimals of a ratio in sentences and in the table of configurations.
DECIMALS = 2
#: Fewest matches of a session that counts over sessions. A run that was measured again later is a
#: session of one match, which says little.
MATCHES_OF_SESSION = 3
#: A session that begins within this time of the end of another is one with it: a machine keeps its
#: state.
SAME_SESSION = timedelta(hours=1)


@dataclass(frozen=True)
class Comparison:
    """A configuration and another one, with the matches of their runs.

    Attributes
    ----------
    names, reference_names : values of `CONFIGURATION`.
    number : of the reference, 1 the main one; 0 if it is none.
    newest : the match of each repeat, of runs whose times count. Those that other work disturbed
        are left out, unless `stays_disturbed`.
    disturbed, stays_disturbed : see `escala.analysis.verdicts.Quiet`.
    every : the matches of all sessions, also of the history.
    """

    names: tuple
    reference_names: tuple
    newest: Matched
    disturbed: int
    stays_disturbed: bool
    every: Matched
    number: int = 0

    @classmethod
    def of(
        cls, names: tuple, reference_names: tuple, usable: Mapping[tuple, list], number: int = 0
    ) -> Comparison:
        """Compare two configurations by their runs whose times count, `usable`."""
        every = matched(usable.get(names, ()), usable.get(reference_names, ()))
        quiet = leave_out_disturbed(newest_of_repeats(every))
        return cls(names, reference_names, *quiet, every, number)

    @property
    def reference(self) -> Configuration:
        return Configuration(*self.reference_names[2:])

    @cached_property
    def sessions(self) -> list[Matched]:
        """The matches of each session that has enough; sessions of one hour are one.

        Disturbed matches are left out, and sessions that stay disturbed.
        """
        by_session: dict[str, Matched] = {}
        for run, reference in zip(self.every.runs, self.every.references, strict=True):
            session_matches = by_session.setdefault(run["session"], Matched([], [], []))
            session_matches.runs.append(run)
            session_matches.references.append(reference)

        def begin(found: Matched) -> datetime:
            return min(datetime.fromisoformat(run["started"]) for run in found.runs)

        def end(found: Matched) -> datetime:
            return max(
                datetime.fromisoformat(run["started"]) + timedelta(seconds=run["wall_seconds"])
                for run in (*found.runs, *found.references)
            )

        groups: list[Matched] = []
        for found in sorted(by_session.values(), key=begin):
            if groups and begin(found) - end(groups[-1]) < SAME_SESSION:
                groups[-1].runs.extend(found.runs)
                groups[-1].references.extend(found.references)
            else:
                groups.append(found)
        quiet = [leave_out_disturbed(found, MATCHES_OF_SESSION) for found in groups]
        return [
            each.matches
            for each in quiet
            if len(each.matches.runs) >= MATCHES_OF_SESSION and not each.stays_disturbed
        ]


def usable(evidence: Evidence) -> dict[tuple, list[Measurement]]:
    """Return the runs whose times count, those of the history included, by configuration."""
    return base.by_configuration(filter(base.is_timed, (*evidence.runs, *evidence.earlier)))


def comparisons(evidence: Evidence) -> Iterator[Comparison]:
    """Yield each configuration that is trained over epochs with each reference of it.

    A further reference that its workload does not have is left out; the main one is not.
    """
    known = base.by_configuration((*evidence.runs, *evidence.earlier))
    timed = usable(evidence)
    for names, runs in base.by_configuration(evidence.runs).items():
        if runs[0]["training"]["kind"] == "fit":
            continue
        for number, reference in compared_with(Configuration(*names[2:]), evidence.references):
            reference_names = (*names[:2], *reference)
            if number == 1 or reference_names in known:
                yield Comparison.of(names, reference_names, timed, number)


def speedup(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each configuration and each reference that it is compared with."""
    judge = Judge(evidence, tables)
    for each in comparisons(evidence):
        yield _row(each, judge)


def _row(each: Comparison, judge: Judge) -> dict:
    runs, newest = judge.runs[each.names], each.newest
    sides = list(zip(newest.runs, newest.references, strict=True))
    cores, baseline = judge.settings(each, base.cores_of)
    fraction = baseline / cores if baseline else None
    by_epochs, found = judge.epochs(each, LEVEL), judge.judgement(each, LEVEL)
    faster = inverse(by_epochs.ratio)
    batch, other_batch = judge.batches(each)
    return {
        **base.named(each.names),
        **base.reference_columns(each.number, each.reference),
        "ranks": each.names[3].ranks,
        "cores": cores,
        "reference_cores": baseline,
        "work": judge.work(each),
        "global_batch": batch,
        "reference_global_batch": other_batch,
        "oversubscribed": any(run["ranks"]["oversubscribed"] for run in runs),
        **together.columns(sides),
        "matches": by_epochs.matches,
        "disturbed_matches": each.disturbed,
        "stays_disturbed": each.stays_disturbed and not by_epochs.is_over_sessions,
        "kind": base.least_certain(base.kind(run) for side in sides for run in side),
        "reason": left_out(len(sides), newest.refused) if sides else unmatched(each, judge),
        "sessions": by_epochs.sessions,
        "over_sessions": by_epochs.is_over_sessions if sides else None,
        "noise_floor": judge.floor(each),
        "verdict": found.verdict.kind if sides else None,
        "verdict_on": ("target" if judge.is_to_target(each) else "epoch") if sides else None,
        "detectable_decrease": found.verdict.detectable,
        **by_epochs.ratio.columns("ratio"),
        **faster.columns("speedup"),
        **Interval(*(s and fraction and s * fraction for s in faster)).columns("efficiency"),
        **_target_columns(each, judge),
        **base.data_of(runs[0], base.ABOUT),
    }  # fmt: skip


class Judgement(NamedTuple):
    """The ratio of the times of two configurations, and the verdict on it.

    Attributes
    ----------
    ratio : of the question "next time".
    matches : the paired runs behind it.
    sessions : the sessions of these, of which those within an hour count once.
    is_over_sessions : whether its interval is of the differences between these sessions.
    verdict : its kind is `NO_VERDICT` if there are too few matches for its level, or if these are
        of a session that stays disturbed.
    """

    ratio: Interval
    matches: int
    sessions: int
    is_over_sessions: bool
    verdict: Verdict


class Judge:
    """Judges comparisons by the runs of an experiment and of its history.

    Attributes
    ----------
    runs : every measurement by its configuration.
    """

    def __init__(self, evidence: Evidence, tables: Tables) -> None:
        self.evidence = evidence
        self.runs = base.by_configuration(evidence.runs)
        floors = tables["noise"].dropna(subset=["floor"]).to_dict("records")
        self._floors = {tuple(row[key] for key in CONFIGURATION): row["floor"] for row in floors}

    @cached_property
    def deviation(self) -> tuple[float, int]:
        """How sessions differ, by all comparisons with main references, and its degrees."""
        return deviation_of_sessions(
            [float(np.exp(np.median(np.log(base.ratios(found))))) for found in each.sessions]
            for each in comparisons(self.evidence)
            if each.number == 1
        )

    def floor(self, each: Comparison) -> float | None:
        """Return the noise floor of the reference, None if it was not measured."""
        return self._floors.get(each.reference_names)

    def settings(self, each: Comparison, setting: Callable[[Measurement], int | None]) -> list:
        """Return a setting of both configurations, from their current runs; None without one."""
        return [None if run is None else setting(run) for run in self._current(each)]

    def _current(self, each: Comparison) -> list[Measurement | None]:
        return [
            next((run for run in self.runs.get(names, ()) if run["current"]), None)
            for names in (each.names, each.reference_names)
        ]

    def batches(self, each: Comparison) -> list[int | None]:
        return self.settings(each, lambda run: run["training"]["global_batch"])

    def work(self, each: Comparison) -> float:
        """Return the work of an epoch over that of the reference; with weak scaling, not 1."""
        run, reference = self._current(each)
        return 1.0 if run is None or reference is None else work(run, reference)

    def is_to_target(self, each: Comparison) -> bool:
        """Return whether times to the target accuracy are compared, since updates differ."""
        batch, other = self.batches(each)
        return self.work(each) == 1 and batch != other

    def decide(
        self, each: Comparison, ratios: Callable[[Matched], np.ndarray], level: float
    ) -> Judgement:
        """Judge two configurations by the ratios of some of their times.

        Parameters
        ----------
        ratios : returns the ratios of matches, an array; shorter where some times are not known.
        """
        newest, known = ratios(each.newest), map(ratios, each.sessions)
        sessions = [(ratio_interval(found).estimate, len(found)) for found in known]
        ratio = ratio_interval(newest, level=level)
        return self._judged(each, ratio, len(newest), sessions, level)

    def epochs(self, each: Comparison, level: float) -> Judgement:
        """Judge the times of an epoch."""
        return self.decide(each, base.ratios, level)

    def to_target(self, each: Comparison, level: float) -> Judgement:
        """Judge the times to the target accuracy."""
        sessions = []
        for found in each.sessions:
            estimate, number = _target_ratio(found, LEVEL)
            sessions.append((estimate.estimate, number))
        ratio, matches = _target_ratio(each.newest, level)
        return self._judged(each, ratio, matches, sessions, level)

    def judgement(self, each: Comparison, level: float) -> Judgement:
        """Judge by the times that decide: with other batches, those to the target accuracy."""
        return (self.to_target if self.is_to_target(each) else self.epochs)(each, level)

    def _judged(
        self,
        each: Comparison,
        ratio: Interval,
        matches: int,
        sessions: Sequence[tuple[float | None, int]],
        level: float,
    ) -> Judgement:
        """Judge a ratio by the newest matches, or by enough sessions with a known ratio each.

        A session whose ratio is unknown is one of many runs that did not reach the target: what is
        left would be a choice of the fast sessions.
        """
        estimates = [estimate for estimate, number in sessions if number >= MATCHES_OF_SESSION]
        if len(estimates) >= SESSIONS_FOR_INTERVAL and None not in estimates:
            ratio = sessions_interval(estimates, level)
            needed, number = SESSIONS_FOR_INTERVAL, len(estimates)
            found = verdict(ratio, number, decimals=DECIMALS, needed=needed)
            return Judgement(ratio, sum(n for _, n in sessions), number, True, found)
        ratio = next_time_interval(ratio, *self.deviation, level)
        needed = max(VALUES_FOR_INTERVAL, matches_needed(level))
        found = verdict(ratio, matches, self.floor(each), DECIMALS, needed)
        if each.stays_disturbed:
            found = Verdict(NO_VERDICT, None)
        measured = len({run["session"] for run in each.newest.runs})
        return Judgement(ratio, matches, measured, False, found)


def inverse(ratio: Interval) -> Interval:
    """Return the speed-up of a ratio of times, with its interval."""
    return Interval(*(1 / r if r else None for r in (ratio.estimate, ratio.high, ratio.low)))


def _target_columns(each: Comparison, judge: Judge) -> dict:
    """Return the columns on the times to the target accuracy of matches."""
    ratio, matches, *_ = judge.to_target(each, LEVEL)
    known = "censored" if ratio.estimate is None else "measured"
    targets = (run["training"]["target_accuracy"] for run in each.newest.runs)
    return {
        "target_accuracy": next(filter(None, targets)) if matches else None,
        "time_to_target_matches": matches,
        "time_to_target_kind": known if matches else "unavailable",
        **ratio.columns("time_to_target_ratio"),
    }


def _target_ratio(found: Matched, level: float) -> tuple[Interval, int]:
    """Return the ratio of the times to the target accuracy, and the number of its matches.

    A run that did not reach it would have taken longer than it ran: the ratio of such a match has
    only an upper or a lower bound.
    """
    bounds = []
    for side in zip(found.runs, found.references, strict=True):
        times = [time_to_target(run) for run in side]
        if all(each["time_to_target_kind"] != "unavailable" for each in times):
            least = [each["time_to_target_seconds"] for each in times]
            most = [
                seconds if each["time_to_target_kind"] == "measured" else np.inf
                for seconds, each in zip(least, times, strict=True)
            ]
            bounds.append((least[0] / most[1], most[0] / least[1]))
    low, high = np.array(bounds, float).reshape(-1, 2).T
    return ratio_interval(low, high, level), len(bounds)


def unmatched(each: Comparison, judge: Judge) -> str:
    """Return why a configuration has no ratio to another one."""
    reference = each.reference
    runs, references = (judge.runs.get(one, ()) for one in (each.names, each.reference_names))
    if not any(run["status"] == "ok" for run in runs):
        return f"no run ended ok: {base.failures(runs)}"
    if not references:
        return f"the experiment has no {reference} alongside it"
    if not any(run["status"] == "ok" for run in references):
        return f"no run of {reference} ended ok: {base.failures(references)}"
    if each.newest.refused:
        return "; ".join(dict.fromkeys(each.newest.refused))
    older = {run["incomparable_because"] for run in (*runs, *references) if not run["comparable"]}
    return (
        f"no run that ended ok, not resumed, shares session and repeat with one of {reference}"
        + (f"; older sessions do not count: {'; '.join(sorted(older))}" if older else "")
    )
