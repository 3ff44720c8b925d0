"""The table of ratios of each configuration to each reference, in paired runs.

A row is a comparison on one basis: the times of an epoch, or the times to the target accuracy. One
basis decides.

A ratio answers the question "what will it be next time". With enough sessions hours apart, the
ratio is over sessions. With fewer, it is over the newest paired run of each repeat, and its
interval is widened by how sessions differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from statistics import median
from typing import NamedTuple

import numpy as np

from escala.analysis.comparable import (
    CONFIGURATION,
    Matched,
    Measurement,
    is_fit,
    match_runs,
    newest_of_repeats,
    why_left_out,
    work,
)
from escala.analysis.looks import futility
from escala.analysis.statistics import (
    SESSIONS_FOR_INTERVAL,
    Interval,
    deviation_of_sessions,
    inverse,
    next_time_interval,
    ratio_interval,
    session_half_width,
    sessions_interval,
)
from escala.analysis.tables import records
from escala.analysis.verdicts import (
    FASTER,
    NO_VERDICT,
    NOT_DISTINGUISHABLE,
    SLOWER,
    Verdict,
    leave_out_disturbed,
    matches_needed,
    verdict,
)
from escala.experiment.runs import MAIN, Configuration, references_for
from escala.report.tables import base
from escala.report.tables.base import EPOCH, LAYOUT, TARGET, Evidence, Tables
from escala.report.tables.runs import time_to_target

#: Decimals of a ratio in sentences and in the table of configurations.
DECIMALS = 2
#: A session with fewer matches does not count in a ratio over sessions. A run that was measured
#: again later makes a session of one match, which says little.
MATCHES_OF_SESSION = 3
#: Two sessions count as one if the second begins within this time after the end of the first: the
#: machine may be in the same condition.
SAME_SESSION = timedelta(hours=1)


@dataclass(frozen=True)
class Comparison:
    """A configuration, its reference, and the matches of their runs.

    Attributes
    ----------
    names, reference_names : values of `CONFIGURATION`.
    newest : the newest match of each repeat. Matches that other work disturbed are left out, unless
        `stays_disturbed`.
    disturbed, stays_disturbed : see `escala.analysis.verdicts.Quiet`.
    every : the matches of all sessions, also of the history.
    number : the number of the reference, `MAIN` for the main one; 0 for an alternative that is no
        reference.
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
        cls, names: tuple, reference_names: tuple, timed: Mapping[tuple, list], number: int = 0
    ) -> Comparison:
        """Match the runs of two configurations. `timed` is the result of `runs_for_ratios`."""
        every = match_runs(timed.get(names, ()), timed.get(reference_names, ()))
        quiet = leave_out_disturbed(newest_of_repeats(every))
        return cls(names, reference_names, *quiet, every, number)

    @property
    def reference(self) -> Configuration:
        """The reference, without the dataset and the workload."""
        return Configuration(*self.reference_names[2:])

    @cached_property
    def sessions(self) -> list[Matched]:
        """The matches of each session with enough of them; close sessions count as one.

        Sessions are close within `SAME_SESSION`. Disturbed matches are left out, and so are
        sessions that stay disturbed.
        """
        by_session: dict[str, Matched] = {}
        for run, reference in self.every.pairs:
            session = by_session.setdefault(run["session"], Matched([], [], []))
            session.runs.append(run)
            session.references.append(reference)

        def begin(session: Matched) -> datetime:
            return min(datetime.fromisoformat(run["started"]) for run in session.runs)

        def end(session: Matched) -> datetime:
            return max(
                datetime.fromisoformat(run["started"]) + timedelta(seconds=run["wall_seconds"])
                for run in (*session.runs, *session.references)
            )

        groups: list[Matched] = []
        for session in sorted(by_session.values(), key=begin):
            if groups and begin(session) - end(groups[-1]) < SAME_SESSION:
                groups[-1].runs.extend(session.runs)
                groups[-1].references.extend(session.references)
            else:
                groups.append(session)
        quiet = [leave_out_disturbed(session, MATCHES_OF_SESSION) for session in groups]
        return [
            session.matches
            for session in quiet
            if len(session.matches.runs) >= MATCHES_OF_SESSION and not session.stays_disturbed
        ]


def runs_for_ratios(evidence: Evidence) -> dict[tuple, list[Measurement]]:
    """Return the runs whose times count, with the history's runs, by configuration."""
    return base.by_configuration(filter(base.is_timed, (*evidence.runs, *evidence.history_runs)))


def comparisons(evidence: Evidence) -> Iterator[Comparison]:
    """Yield each configuration that is trained over epochs with each of its references.

    A reference that the workload does not have is left out, except the main one.
    """
    known = base.by_configuration((*evidence.runs, *evidence.history_runs))
    timed = runs_for_ratios(evidence)
    for names, runs in base.by_configuration(evidence.runs).items():
        if is_fit(runs[0]):
            continue
        for number, reference in references_for(Configuration(*names[2:]), evidence.references):
            reference_names = (*names[:2], *reference)
            if number == MAIN or reference_names in known:
                yield Comparison.of(names, reference_names, timed, number)


def speedup(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each configuration, each of its references, and each basis of their times."""
    judge = Judge(evidence, tables)
    for compared in comparisons(evidence):
        runs, pairs = judge.runs[compared.names], compared.newest.pairs
        cores, reference_cores = judge.settings(compared, base.cores_of)
        batch, reference_batch = judge.batches(compared)
        apart = [seconds_apart(*pair) for pair in pairs]
        about = {
            **base.name_columns(compared.names),
            **base.reference_columns(compared.number, compared.reference),
            "ranks": compared.names[LAYOUT].ranks,
            "cores": cores,
            "reference_cores": reference_cores,
            "work": judge.work(compared),
            "global_batch": batch,
            "reference_global_batch": reference_batch,
            "oversubscribed": any(run["ranks"]["oversubscribed"] for run in runs),
            "same_nodes": all(on_same_nodes(*pair) for pair in pairs) if pairs else None,
            "seconds_apart": median(apart) if apart else None,
            "node_spread": node_spread(run for pair in pairs for run in pair),
            "disturbed_matches": compared.disturbed,
            "reason": why_left_out(len(pairs), compared.newest.refused)
            if pairs
            else why_no_match(compared, judge),
            "noise_floor": judge.floor(compared),
            **base.data_of(runs[0], base.ABOUT),
        }
        deciding = judge.basis(compared)
        has_target = any(run["training"]["target_accuracy"] for run in compared.newest.runs)
        for basis in (EPOCH, TARGET)[: 1 + (has_target or deciding == TARGET)]:
            judged = judge.decide(compared, BASES[basis], evidence.level)
            kind = base.least_certain(base.kind(run) for pair in pairs for run in pair)
            if basis == TARGET:
                known = "censored" if judged.ratio.estimate is None else "measured"
                kind = known if judged.matches else "unavailable"
            gain, efficiency = inverse(judged.ratio), Interval(None, None, None)
            if reference_cores:
                efficiency = Interval(*(s and s * reference_cores / cores for s in gain))
            yield {
                **about,
                "basis": basis,
                "decides": basis == deciding,
                "kind": kind,
                **judged.columns(),
                **judged.in_session.columns("session_ratio"),
                "verdict": judged.verdict.kind if pairs else None,
                **gain.columns("speedup"),
                **efficiency.columns("efficiency"),
            }


def on_same_nodes(one: Measurement, other: Measurement) -> bool:
    """Return whether all nodes of one run are among the nodes of the other run."""
    mine, theirs = (set(run["ranks"]["hosts"]) for run in (one, other))
    return mine <= theirs or theirs <= mine


def seconds_apart(one: Measurement, other: Measurement) -> float:
    """Return the seconds from the start of one run to the start of the other run."""
    starts = [datetime.fromisoformat(run["started"]) for run in (one, other)]
    return abs((starts[0] - starts[1]).total_seconds())


def node_spread(runs: Iterable[Measurement]) -> float | None:
    """Return how much longer the slowest node takes than the fastest; 0.02 is 2 %.

    The function compares the median times of a configuration of one node on each node. It returns
    the largest spread of several configurations, or None if no configuration ran on two nodes.
    """
    spreads = []
    on_one_node = (run for run in runs if len(run["ranks"]["hosts"]) == 1)
    for same in base.by_configuration(on_one_node).values():
        times_by_node: dict[str, list[float]] = {}
        for run in same:
            [node] = run["ranks"]["hosts"]
            times_by_node.setdefault(node, []).append(base.seconds_per_epoch(run))
        medians = [median(times) for times in times_by_node.values()]
        if len(medians) > 1:
            spreads.append(max(medians) / min(medians) - 1)
    return max(spreads, default=None)


class Judgement(NamedTuple):
    """The ratio of the times of two configurations, and the verdict on it.

    Attributes
    ----------
    ratio : the ratio for the question "next time".
    matches : the paired runs behind it.
    sessions : the number of sessions of these matches. In a ratio over sessions, close ones count
        once.
    over_sessions : whether the interval of the ratio is over sessions.
    stays_disturbed : whether there is no verdict, because other work disturbed too many matches.
    verdict : its kind is `NO_VERDICT` if matches are too few for the level, or if
        `stays_disturbed`.
    level : of the intervals.
    in_session : the ratio of the newest matches, with the interval of their session alone.
    between : the result of `session_half_width`.
    matches_to_decide : about how many matches of one session would give a verdict at this ratio;
        None if there is one, or if it is too near 1 for one session.
    """

    ratio: Interval
    matches: int
    sessions: int
    over_sessions: bool
    stays_disturbed: bool
    verdict: Verdict
    level: float
    in_session: Interval
    between: float
    matches_to_decide: int | None

    def columns(self, uses: str = "as much") -> dict:
        """Return the columns of a table on this judgement, without the verdict.

        Parameters
        ----------
        uses : see `escala.analysis.looks.futility`.
        """
        is_open = self.verdict.kind == NOT_DISTINGUISHABLE
        return {
            "level": self.level,
            "futile": futility(self.in_session, uses, self.between) if is_open else None,
            "matches_to_decide": self.matches_to_decide,
            "matches": self.matches,
            "sessions": self.sessions,
            "over_sessions": self.over_sessions,
            "stays_disturbed": self.stays_disturbed,
            "detectable_decrease": self.verdict.detectable,
            **self.ratio.columns("ratio"),
        }


class Judge:
    """Judges comparisons by the runs of an experiment and of its history.

    Attributes
    ----------
    runs : every measurement by its configuration.
    """

    def __init__(self, evidence: Evidence, tables: Tables) -> None:
        self.evidence = evidence
        self.runs = base.by_configuration(evidence.runs)
        floors = records(tables["noise"].dropna(subset=["floor"]))
        self._floors = {tuple(row[key] for key in CONFIGURATION): row["floor"] for row in floors}

    @cached_property
    def deviation(self) -> tuple[float, int]:
        """How sessions differ, by comparisons with main references; and the degrees of freedom."""
        return deviation_of_sessions(
            [
                float(np.exp(np.median(np.log(base.ratios(session)))))
                for session in compared.sessions
            ]
            for compared in comparisons(self.evidence)
            if compared.number == MAIN
        )

    def floor(self, compared: Comparison) -> float | None:
        """Return the noise floor of the reference; None if the floor was not measured."""
        return self._floors.get(compared.reference_names)

    def settings(self, compared: Comparison, setting: Callable[[Measurement], int | None]) -> list:
        """Return a setting of both configurations, from a current run; None without one."""
        return [None if run is None else setting(run) for run in self._current(compared)]

    def _current(self, compared: Comparison) -> list[Measurement | None]:
        """Return the first current run of both configurations; None without one."""
        return [
            next((run for run in self.runs.get(names, ()) if run["current"]), None)
            for names in (compared.names, compared.reference_names)
        ]

    def batches(self, compared: Comparison) -> list[int | None]:
        """Return the rows in a step of both configurations."""
        return self.settings(compared, lambda run: run["training"]["global_batch"])

    def work(self, compared: Comparison) -> float:
        """Return the work of an epoch divided by the reference's; 1 without weak scaling."""
        run, reference = self._current(compared)
        return 1.0 if run is None or reference is None else work(run, reference)

    def basis(self, compared: Comparison) -> str:
        """Return which times decide. If updates differ, the times to the target accuracy decide."""
        batch, reference_batch = self.batches(compared)
        return TARGET if self.work(compared) == 1 and batch != reference_batch else EPOCH

    def judge(self, compared: Comparison, level: float) -> Judgement:
        """Judge two configurations by the times that decide."""
        return self.decide(compared, BASES[self.basis(compared)], level)

    def decide(
        self, compared: Comparison, ratios: Callable[[Matched], np.ndarray], level: float
    ) -> Judgement:
        """Judge two configurations by the ratios of some of their times.

        If enough sessions have matches and all their ratios are known, the ratio is over sessions.
        Otherwise it is over the newest matches. The ratio of a session is unknown if many runs did
        not reach the target. To leave out such a session would select the fast sessions.

        Parameters
        ----------
        ratios : returns the ratios of matches, shape (matches,), or their lower and upper bounds,
            (2, matches). Matches with unknown times are left out.
        """
        # The first row has the ratios or their lower bounds, the last one their upper bounds.
        bounds = [np.atleast_2d(ratios(session)) for session in compared.sessions]
        enough = [session for session in bounds if session.shape[1] >= MATCHES_OF_SESSION]
        estimates = [ratio_interval(session[0], session[-1]).estimate for session in enough]
        newest = np.atleast_2d(ratios(compared.newest))
        of_session = ratio_interval(newest[0], newest[-1], level)
        between = session_half_width(*self.deviation, level)
        over_sessions = len(estimates) >= SESSIONS_FOR_INTERVAL and None not in estimates
        stays_disturbed = compared.stays_disturbed and not over_sessions
        if over_sessions:
            ratio, sessions = sessions_interval(estimates, level), len(estimates)
            decided = verdict(ratio, sessions, decimals=DECIMALS, needed=SESSIONS_FOR_INTERVAL)
            matches = sum(session.shape[1] for session in bounds)
        else:
            ratio, matches = next_time_interval(of_session, *self.deviation, level), newest.shape[1]
            decided = verdict(ratio, matches, self.floor(compared), DECIMALS)
            sessions = len({run["session"] for run in compared.newest.runs})
        if stays_disturbed:
            decided = Verdict(NO_VERDICT, None)
        to_decide, effect = None, abs(math.log(of_session.estimate or 1.0))
        if decided.kind not in (FASTER, SLOWER) and newest.shape[1] > 1 and effect > between:
            half_width = math.sqrt(effect**2 - between**2)
            to_decide = matches_needed(newest[0], half_width, level)
        return Judgement(
            ratio, matches, sessions, over_sessions, stays_disturbed, decided, level, of_session,
            between, to_decide,
        )  # fmt: skip


def _target_bounds(matches: Matched) -> np.ndarray:
    """Return bounds of the ratios of the times to the target accuracy, shape (2, known matches).

    A run that did not reach the target would have taken longer than it ran. So the ratio of its
    match has only an upper or a lower bound.
    """
    bounds = []
    for pair in matches.pairs:
        columns = [time_to_target(run) for run in pair]
        kinds = [of_run["time_to_target_kind"] for of_run in columns]
        if "unavailable" not in kinds:
            least, least_of_reference = (of_run["time_to_target_seconds"] for of_run in columns)
            most = least if kinds[0] == "measured" else np.inf
            most_of_reference = least_of_reference if kinds[1] == "measured" else np.inf
            bounds.append((least / most_of_reference, most / least_of_reference))
    return np.array(bounds, float).reshape(-1, 2).T


#: The function that returns the ratios of matches, by the times that are compared.
BASES: dict[str, Callable[[Matched], np.ndarray]] = {EPOCH: base.ratios, TARGET: _target_bounds}


def why_no_match(compared: Comparison, judge: Judge) -> str:
    """Return why a configuration has no ratio to another one."""
    reference = compared.reference
    runs = judge.runs.get(compared.names, ())
    references = judge.runs.get(compared.reference_names, ())
    if not any(run["status"] == "ok" for run in runs):
        return f"no run ended ok: {base.failures(runs)}"
    if not references:
        return f"the experiment has no {reference} alongside it"
    if not any(run["status"] == "ok" for run in references):
        return f"no run of {reference} ended ok: {base.failures(references)}"
    if compared.newest.refused:
        return "; ".join(dict.fromkeys(compared.newest.refused))
    older = {run["incomparable_because"] for run in (*runs, *references) if not run["comparable"]}
    return (
        f"no run that ended ok, not resumed, shares session and repeat with one of {reference}"
        + (f"; older sessions do not count: {'; '.join(sorted(older))}" if older else "")
    )
