"""Build the table of ratios of each configuration to each reference, in matches of runs.

`ratio` is of the newest match of each repeat, mostly of one session, and has its own 95 % interval.
Beside it are the ends and the verdict at the simultaneous level of all configurations from which
the best is chosen, and the ratio over all sessions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from escala.analysis.statistics import (
    LEVEL,
    SESSIONS_FOR_INTERVAL,
    VALUES_FOR_INTERVAL,
    Interval,
    matches_needed,
    ratio_interval,
    sessions_interval,
)
from escala.analysis.verdicts import Verdict, over_sessions, simultaneous_level, verdict
from escala.experiment.references import Configuration, compared_with, reference_number
from escala.record.comparable import (
    CONFIGURATION,
    Measurement,
    Pairs,
    left_out,
    newest_of_repeats,
    paired,
)
from escala.report.tables import noise
from escala.report.tables import runs as table_of_runs
from escala.report.tables.base import (
    Evidence,
    by_configuration,
    by_stein,
    frame,
    interval_of_matches,
    is_timed,
    poorest,
    reasons,
    reference_columns,
)
from escala.runtime.layout import Layout

#: Decimals of a ratio in sentences and in the table of configurations.
DECIMALS = 2
#: Fewest matches of a session that counts over sessions. A run that was measured again later is a
#: session of one match, which says little.
MATCHES_OF_SESSION = 3


class Comparison(NamedTuple):
    """A configuration and a reference, with the matches of their runs.

    Attributes
    ----------
    names : values of `CONFIGURATION`; `of_reference` are those of the reference.
    number : of the reference, 1 the main one.
    pairs : the newest of each repeat, of runs whose times count.
    all_pairs : those of all sessions, also of the history.
    """

    names: tuple
    number: int
    of_reference: tuple
    pairs: Pairs
    all_pairs: Pairs

    @property
    def reference(self) -> Configuration:
        return Configuration(*self.of_reference[2:])


def comparisons(evidence: Evidence) -> Iterator[Comparison]:
    """Yield each configuration that is trained by steps with each reference of it."""
    usable = by_configuration(filter(is_timed, (*evidence.found, *evidence.earlier)))
    for names, group in evidence.runs.groupby(list(CONFIGURATION), sort=False):
        if group["training_kind"].iloc[0] == "fit":
            continue
        for number, reference in compared_with(Configuration(*names[2:]), evidence.references):
            of_reference = (*names[:2], *reference)
            pairs = paired(usable.get(names, ()), usable.get(of_reference, ()))
            yield Comparison(names, number, of_reference, newest_of_repeats(pairs), pairs)


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each configuration and each reference that it is compared with."""
    every = list(comparisons(evidence))
    # The best is chosen from one group, so all of it counts, whether it is shown or not.
    sizes = Counter(_chosen_from(each, evidence) for each in every if each.pairs.runs)
    by_name = by_configuration(evidence.found)
    floors = {
        tuple(row[key] for key in CONFIGURATION): row["floor"] for row in noise.rows(evidence)
    }
    groups = dict(iter(evidence.runs.groupby(list(CONFIGURATION), sort=False)))
    for each in every:
        names, of_reference, pairs = each.names, each.of_reference, each.pairs
        group = groups[names]
        mine, theirs = _sides(pairs)
        cores, baseline = (_setting(by_name.get(one), _cores) for one in (names, of_reference))
        share = baseline / cores if baseline else None
        batch, other_batch = (
            _setting(by_name.get(one), _global_batch) for one in (names, of_reference)
        )
        compared = sizes[_chosen_from(each, evidence)]
        judged = _Judged(each, batch != other_batch, floors.get(of_reference), evidence)
        ratio = judged.of_epochs(LEVEL)
        speedup, found = inverse(ratio), judged.verdict(LEVEL)
        yield {
            **dict(zip(CONFIGURATION, names, strict=True)),
            **reference_columns(each.number, each.reference),
            "ranks": Layout.parse(Configuration(*names[2:]).layout).ranks,
            "cores": cores,
            "reference_cores": baseline,
            "global_batch": batch,
            "reference_global_batch": other_batch,
            "oversubscribed": bool(group["oversubscribed"].any()),
            "other_hosts": any(map(_on_other_hosts, mine["hosts"], theirs["hosts"])),
            "pairs": len(mine),
            "kind": poorest(pd.concat([mine["kind"], theirs["kind"]])),
            "reason": left_out(len(mine), pairs.refused)
            if len(mine)
            else _unpaired(by_name[names], by_name.get(of_reference, ()), each.reference, pairs),
            "sessions": mine["session"].nunique(),
            "noise_floor": judged.floor,
            "verdict": found and found.kind,
            "visible_decrease": found and found.visible,
            **ratio.columns("ratio"),
            **speedup.columns("speedup"),
            **Interval(*(s and share and s * share for s in speedup)).columns("efficiency"),
            **_target_ratio(mine, theirs),
            **_of_best(judged, compared),
            **_over_sessions(judged, compared),
            "provenance": group["provenance"].iloc[0],
            "leaky": group["leaky"].iloc[0],
        }


class _Judged:
    """The ratio by which a comparison is judged: of epochs, or with other batches to the target."""

    def __init__(
        self, comparison: Comparison, to_target: bool, floor: float | None, evidence: Evidence
    ) -> None:
        self.comparison, self.floor, self.evidence = comparison, floor, evidence
        self.mine, self.theirs = _sides(comparison.pairs)
        self.to_target = to_target

    def of_epochs(self, level: float) -> Interval:
        quotients = _quotients(self.mine, self.theirs, "train_seconds_per_epoch")
        return interval_of_matches(quotients, self.comparison.pairs, self.evidence, level)

    def interval(self, level: float) -> tuple[Interval, int, bool]:
        """Return the ratio, the matches behind it, and whether so many can reach the level."""
        if self.to_target:
            ratio, pairs = _of_target(self.mine, self.theirs, level)
            return ratio, pairs, pairs >= matches_needed(level)
        pairs = len(self.mine)
        stein = by_stein(self.comparison.pairs, self.evidence)
        return self.of_epochs(level), pairs, stein or pairs >= matches_needed(level)

    def verdict(self, level: float) -> Verdict | None:
        """Return the verdict at a level; None without a match."""
        if not len(self.mine):
            return None
        ratio, pairs, reached = self.interval(level)
        needed = VALUES_FOR_INTERVAL if reached else pairs + 1
        return verdict(ratio, pairs, self.floor, DECIMALS, needed)

    def of_sessions(self) -> tuple[list[float], int]:
        """Return the ratio of each session that counts, and their matches; none if one is unknown.

        A session whose ratio is unknown is one of many runs that did not reach the target: what is
        left would be a choice of the fast sessions.
        """
        mine, theirs = _sides(self.comparison.all_pairs)
        estimates, matches = [], 0
        for places in mine.groupby("session", sort=False).indices.values():
            sides = mine.iloc[places], theirs.iloc[places]
            if self.to_target:
                ratio, number = _of_target(*sides, LEVEL)
            else:
                ratio = ratio_interval(_quotients(*sides, "train_seconds_per_epoch"))
                number = len(places)
            if number >= MATCHES_OF_SESSION:
                estimates.append(ratio.estimate)
                matches += number
        return ([], 0) if None in estimates else (estimates, matches)


def _chosen_from(comparison: Comparison, evidence: Evidence) -> tuple:
    """Return what configurations have in common of which the best is chosen.

    They are compared with the main reference. Those that are references themselves are alternatives
    that the experiment names, and a group of their own.
    """
    own = Configuration(*comparison.names[2:])
    is_reference = reference_number(own, evidence.references) is not None
    return (*comparison.names[:2], comparison.number, is_reference)


def _of_best(judged: _Judged, compared: int) -> dict:
    """Return the columns by which a configuration is judged as the best of several."""
    level = simultaneous_level(compared)
    found = judged.verdict(level)
    if judged.comparison.number != 1 or found is None:
        return {}
    ratio, _, reached = judged.interval(level)
    is_own = compared == 1
    low, high = (ratio.low, ratio.high) if reached or is_own else (None, None)
    return {
        "best_of": compared, "best_low": low, "best_high": high, "best_verdict": found.kind
    }  # fmt: skip


def _over_sessions(judged: _Judged, compared: int) -> dict:
    """Return the columns on the ratio over sessions, which are empty with too few sessions."""
    estimates, matches = judged.of_sessions()
    number = len(estimates)
    if number < SESSIONS_FOR_INTERVAL:
        return {}
    own = sessions_interval(estimates)
    found = {
        "sessions_judged": number,
        "sessions_pairs": matches,
        **own.columns("sessions_ratio"),
        "sessions_verdict": over_sessions(own, number, DECIMALS),
    }
    if judged.comparison.number == 1 and compared:
        best = sessions_interval(estimates, simultaneous_level(compared))
        found |= {
            "best_sessions_low": best.low,
            "best_sessions_high": best.high,
            "best_sessions_verdict": over_sessions(best, number, DECIMALS),
        }
    return found


def _sides(pairs: Pairs) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of `runs` of both sides of some matches."""
    mine, theirs = (
        frame("runs", map(table_of_runs.row, side)) for side in (pairs.runs, pairs.references)
    )
    return mine, theirs


def epoch_ratios(pairs: Pairs) -> dict[int, float]:
    """Return the ratio of the seconds per epoch of each match, by its repeat."""
    mine, theirs = _sides(pairs)
    ratios = _quotients(mine, theirs, "train_seconds_per_epoch")
    return dict(zip(map(int, mine["repeat"]), map(float, ratios), strict=True))


def inverse(ratio: Interval) -> Interval:
    """Return the speed-up of a ratio of times, with its interval."""
    return Interval(*(1 / r if r else None for r in (ratio.estimate, ratio.high, ratio.low)))


def _on_other_hosts(mine: str, theirs: str) -> bool:
    """Return whether neither run's hosts, joined by `;`, are among the other's."""
    one, other = set(mine.split(";")), set(theirs.split(";"))
    return not (one <= other or other <= one)


def _setting(runs: Sequence[Measurement] | None, of: Callable[[Measurement], int]) -> int | None:
    """Return a setting of a configuration from its current runs."""
    return next((of(run) for run in runs or () if run["current"]), None)


def _cores(run: Measurement) -> int:
    """Return the cores that a run requests, over all its ranks."""
    return run["ranks"]["asked"] * run["knobs"]["cores_per_process"]


def _global_batch(run: Measurement) -> int | None:
    return run["training"]["global_batch"]


def _quotients(mine: pd.DataFrame, theirs: pd.DataFrame, column: str) -> np.ndarray:
    return mine[column].to_numpy() / theirs[column].to_numpy()


def _target_ratio(mine: pd.DataFrame, theirs: pd.DataFrame) -> dict:
    """Return the columns on the times to the target accuracy of matches of runs."""
    ratio, pairs = _of_target(mine, theirs, LEVEL)
    kind = "censored" if ratio.estimate is None else "measured"
    target = mine["target_accuracy"].dropna()
    return {
        "target_accuracy": target.iloc[0] if pairs else None,
        "time_to_target_pairs": pairs,
        "time_to_target_kind": kind if pairs else "unavailable",
        **ratio.columns("time_to_target_ratio"),
    }


def _of_target(mine: pd.DataFrame, theirs: pd.DataFrame, level: float) -> tuple[Interval, int]:
    """Return the ratio of the times to the target accuracy, and of how many matches it is.

    A run that did not reach it would have taken longer than it ran: the ratio of such a match has
    only an upper or a lower bound.
    """
    spent = [side["time_to_target_seconds"].to_numpy(float) for side in (mine, theirs)]
    known = ~np.isnan(spent).any(axis=0)
    least = [seconds[known] for seconds in spent]
    reached = [(side["time_to_target_kind"] == "measured")[known] for side in (mine, theirs)]
    most = [np.where(done, spent, np.inf) for done, spent in zip(reached, least, strict=True)]
    ratio = ratio_interval(least[0] / most[1], most[0] / least[1], level)
    return ratio, int(known.sum())


def _unpaired(
    runs: Sequence[Measurement],
    references: Sequence[Measurement],
    reference: Configuration,
    pairs: Pairs,
) -> str:
    """Return why a configuration has no ratio to a reference."""
    if not any(run["status"] == "ok" for run in runs):
        return f"no run ended ok: {_failures(runs)}"
    if not references:
        return f"the experiment has no {reference} beside it"
    if not any(run["status"] == "ok" for run in references):
        return f"no run of {reference} ended ok: {_failures(references)}"
    if pairs.refused:
        return "; ".join(dict.fromkeys(pairs.refused))
    older = {run["incomparable_because"] for run in (*runs, *references) if not run["comparable"]}
    return (
        f"no run that ended ok, not resumed, shares session and repeat with one of {reference}"
        + (f"; older sessions do not count: {'; '.join(sorted(older))}" if older else "")
    )


def _failures(runs: Sequence[Measurement]) -> str:
    return reasons(pd.DataFrame([run for run in runs if run["current"]]))
