"""The table of ratios of each configuration to each reference, in matches of runs.

`ratio` is of the newest match of each repeat, mostly of one session, and has its own 95 % interval.
Alongside it are the ends and the verdict at the simultaneous level of all configurations from which
the best is selected, and the ratio over all sessions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from escala.analysis.statistics import (
    LEVEL,
    SESSIONS_FOR_INTERVAL,
    VALUES_FOR_INTERVAL,
    Interval,
    matches_needed,
    ratio_interval,
    sessions_interval,
)
from escala.analysis.verdicts import Verdict, simultaneous_level, verdict
from escala.experiment.references import Configuration, compared_with, reference_number
from escala.record.comparable import (
    CONFIGURATION,
    Matched,
    Measurement,
    left_out,
    matched,
    newest_of_repeats,
    work,
)
from escala.report.tables import base, together
from escala.report.tables.base import Evidence, Tables
from escala.report.tables.runs import time_to_target
from escala.runtime.layout import Layout

#: Decimals of a ratio in sentences and in the table of configurations.
DECIMALS = 2
#: Fewest matches of a session that counts over sessions. A run that was measured again later is a
#: session of one match, which says little.
MATCHES_OF_SESSION = 3


@dataclass(frozen=True)
class Comparison:
    """A configuration and a reference, with the matches of their runs.

    Attributes
    ----------
    names : values of `CONFIGURATION`.
    number : of the reference, 1 the main one.
    newest : the match of each repeat, of runs whose times count.
    every : the matches of all sessions, also of the history.
    """

    names: tuple
    number: int
    reference: Configuration
    newest: Matched
    every: Matched

    @property
    def configuration(self) -> Configuration:
        return Configuration(*self.names[2:])

    @property
    def reference_names(self) -> tuple:
        return (*self.names[:2], *self.reference)

    @cached_property
    def ratios(self) -> np.ndarray:
        return base.ratios(self.newest)


def comparisons(evidence: Evidence) -> Iterator[Comparison]:
    """Yield each configuration that is trained over epochs with each reference of it.

    A further reference that its workload does not have is left out; the main one is not.
    """
    found = base.by_configuration((*evidence.runs, *evidence.earlier))
    usable = base.by_configuration(filter(base.is_timed, (*evidence.runs, *evidence.earlier)))
    for names, runs in base.by_configuration(evidence.runs).items():
        if runs[0]["training"]["kind"] == "fit":
            continue
        for number, reference in compared_with(Configuration(*names[2:]), evidence.references):
            if number > 1 and (*names[:2], *reference) not in found:
                continue
            theirs = usable.get((*names[:2], *reference), ())
            every = matched(usable.get(names, ()), theirs)
            yield Comparison(names, number, reference, newest_of_repeats(every), every)


def speedup(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each configuration and each reference that it is compared with."""
    every = list(comparisons(evidence))
    # The best is selected from one group, so all of it counts, whether it is shown or not.
    sizes = Counter(_group(each, evidence) for each in every if each.newest.runs)
    by_name = base.by_configuration(evidence.runs)
    floors = {
        tuple(row[key] for key in CONFIGURATION): row["floor"]
        for row in tables["noise"].dropna(subset=["floor"]).to_dict("records")
    }
    for each in every:
        floor, compared = floors.get(each.reference_names), sizes[_group(each, evidence)]
        yield _row(each, by_name, _Judged(each, by_name, floor, evidence), compared)


def _row(
    each: Comparison, by_name: Mapping[tuple, Sequence[Measurement]], judged: _Judged, compared: int
) -> dict:
    runs, newest = by_name[each.names], each.newest
    sides = list(zip(newest.runs, newest.references, strict=True))
    cores, baseline = judged.settings(base.cores_of)
    fraction = baseline / cores if baseline else None
    ratio, found = judged.epochs_ratio(LEVEL), judged.verdict(LEVEL)
    faster = inverse(ratio)
    batch, other_batch = judged.batches
    return {
        **base.named(each.names),
        **base.reference_columns(each.number, each.reference),
        "ranks": Layout.parse(each.configuration.layout).ranks,
        "cores": cores,
        "reference_cores": baseline,
        "work": judged.work,
        "global_batch": batch,
        "reference_global_batch": other_batch,
        "oversubscribed": any(run["ranks"]["oversubscribed"] for run in runs),
        **together.columns(sides),
        "matches": len(sides),
        "kind": base.least_certain(base.kind(run) for side in sides for run in side),
        "reason": left_out(len(sides), newest.refused) if sides else _unmatched(each, by_name),
        "sessions": len({run["session"] for run in newest.runs}),
        "noise_floor": judged.floor,
        "verdict": found and found.kind,
        "visible_decrease": found and found.visible,
        **ratio.columns("ratio"),
        **faster.columns("speedup"),
        **Interval(*(s and fraction and s * fraction for s in faster)).columns("efficiency"),
        **_target_columns(newest),
        **_as_best(judged, compared),
        **_over_sessions(judged, compared),
        **base.data_of(runs[0], base.ABOUT),
    }  # fmt: skip


class _Judged:
    """The ratio by which a comparison is judged: of epochs, or with other batches to the target."""

    def __init__(
        self, comparison: Comparison, by_name: Mapping, floor: float | None, evidence: Evidence
    ) -> None:
        self.comparison, self.floor, self.evidence = comparison, floor, evidence
        names = comparison.names, comparison.reference_names
        self._current = [[run for run in by_name.get(one, ()) if run["current"]] for one in names]
        self.batches = self.settings(lambda run: run["training"]["global_batch"])
        #: The work of an epoch over that of the reference; with weak scaling, another than 1.
        self.work = work(*(side[0] for side in self._current)) if all(self._current) else 1.0
        self.to_target = self.work == 1 and self.batches[0] != self.batches[1]

    def settings(self, setting: Callable[[Measurement], int | None]) -> list[int | None]:
        """Return a setting of both configurations, from their current runs."""
        return [next(map(setting, runs), None) for runs in self._current]

    def epochs_ratio(self, level: float) -> Interval:
        comparison = self.comparison
        return base.interval_of_matches(comparison.ratios, comparison.newest, self.evidence, level)

    def interval(self, level: float) -> tuple[Interval, int, bool]:
        """Return the ratio, the number of its matches, and whether that can reach the level."""
        if self.to_target:
            ratio, matches = _target_ratio(self.comparison.newest, level)
            return ratio, matches, matches >= matches_needed(level)
        matches = len(self.comparison.newest.runs)
        reached = base.by_stein(self.comparison.newest, self.evidence)
        return self.epochs_ratio(level), matches, reached or matches >= matches_needed(level)

    def verdict(self, level: float) -> Verdict | None:
        """Return the verdict at a level; None without a match."""
        if not self.comparison.newest.runs:
            return None
        ratio, matches, reached = self.interval(level)
        needed = VALUES_FOR_INTERVAL if reached else matches + 1
        return verdict(ratio, matches, self.floor, DECIMALS, needed)

    def over_sessions(self) -> tuple[list[float], int]:
        """Return the ratio of each session that counts, and their matches; none if one is unknown.

        A session whose ratio is unknown is one of many runs that did not reach the target: what is
        left would be a choice of the fast sessions.
        """
        every, estimates, matches = self.comparison.every, [], 0
        by_session: dict[str, Matched] = {}
        for run, reference in zip(every.runs, every.references, strict=True):
            session_matches = by_session.setdefault(run["session"], Matched([], [], []))
            session_matches.runs.append(run)
            session_matches.references.append(reference)
        for found in by_session.values():
            ratio, number = ratio_interval(base.ratios(found)), len(found.runs)
            if self.to_target:
                ratio, number = _target_ratio(found, LEVEL)
            if number >= MATCHES_OF_SESSION:
                estimates.append(ratio.estimate)
                matches += number
        return ([], 0) if None in estimates else (estimates, matches)


def _group(comparison: Comparison, evidence: Evidence) -> tuple:
    """Return what configurations have in common of which the best is selected.

    They are compared with the main reference. Those that are references themselves are alternatives
    that the experiment names; they form a separate group.
    """
    number = reference_number(comparison.configuration, evidence.references)
    return (*comparison.names[:2], comparison.number, number is not None)


def _as_best(judged: _Judged, compared: int) -> dict:
    """Return the columns by which a configuration is judged as the best of several."""
    level = simultaneous_level(compared)
    found = judged.verdict(level)
    if judged.comparison.number != 1 or found is None:
        return {}
    ratio, _, reached = judged.interval(level)
    low, high = (ratio.low, ratio.high) if reached or compared == 1 else (None, None)
    return {
        "best_of": compared, "best_low": low, "best_high": high, "best_verdict": found.kind
    }  # fmt: skip


def _over_sessions(judged: _Judged, compared: int) -> dict:
    """Return the columns on the ratio over sessions, which are empty with too few sessions."""
    estimates, matches = judged.over_sessions()
    number = len(estimates)
    if number < SESSIONS_FOR_INTERVAL:
        return {}

    def judge(ratio: Interval) -> str:
        needed = SESSIONS_FOR_INTERVAL
        return verdict(ratio, number, decimals=DECIMALS, needed=needed).kind

    ratio = sessions_interval(estimates)
    found = {
        "sessions_judged": number,
        "sessions_matches": matches,
        **ratio.columns("sessions_ratio"),
        "sessions_verdict": judge(ratio),
    }
    if judged.comparison.number == 1 and compared:
        best = sessions_interval(estimates, simultaneous_level(compared))
        found |= {
            "best_sessions_low": best.low,
            "best_sessions_high": best.high,
            "best_sessions_verdict": judge(best),
        }
    return found


def inverse(ratio: Interval) -> Interval:
    """Return the speed-up of a ratio of times, with its interval."""
    return Interval(*(1 / r if r else None for r in (ratio.estimate, ratio.high, ratio.low)))


def _target_columns(found: Matched) -> dict:
    """Return the columns on the times to the target accuracy of matches."""
    ratio, matches = _target_ratio(found, LEVEL)
    known = "censored" if ratio.estimate is None else "measured"
    targets = (run["training"]["target_accuracy"] for run in found.runs)
    return {
        "target_accuracy": next(filter(None, targets)) if matches else None,
        "time_to_target_pairs": matches,
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


def _unmatched(each: Comparison, by_name: Mapping[tuple, Sequence[Measurement]]) -> str:
    """Return why a configuration has no ratio to a reference."""
    runs, reference = by_name[each.names], each.reference
    references = by_name.get(each.reference_names, ())
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
