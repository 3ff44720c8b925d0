"""The tables of ladders, of references against themselves, and of drift.

A rung of a ladder is the change from one configuration to the next. Each rung has a series of runs,
in which both configurations take turns. The two ends of the ladder have a further series. No series
shares runs with another one, so the product of the rungs' ratios equals the ratio of the ends only
if the rungs explain the whole difference. Times are of whole epochs, `epoch_wall_seconds`, because
training steps do not contain the writing of checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

import numpy as np

from escala.analysis.comparable import (
    Measurement,
    is_fit,
    match_runs,
    newest_of_repeats,
    why_left_out,
)
from escala.analysis.statistics import (
    MATCHES_FOR_INTERVAL,
    Interval,
    combine_intervals,
    difference_interval,
    geometric_pseudo_median,
    pseudo_median,
    ratio_interval,
)
from escala.analysis.verdicts import MIN_MEASUREMENTS, leave_out_disturbed, noise_floor
from escala.analysis.verdicts import drift as drift_of
from escala.experiment.runs import Configuration
from escala.report.tables import base
from escala.report.tables.base import Evidence, Tables

RUNG, PRODUCT, DIRECT = "rung", "product", "direct"
#: Largest difference between the product of the ratios and the ratio of the ends, as a fraction of
#: the ratio of the ends.
TOLERANCE = 0.1


class _Series(NamedTuple):
    """The times of the two configurations of a rung, or of the ends of a ladder.

    Attributes
    ----------
    rung : an `escala.experiment.Rung` as a mapping; the rung of the ends has no number.
    runs : all measurements of the series.
    before, after : seconds of an epoch in each match, shape (matches,).
    refused : why further matches have no ratio.
    """

    rung: Mapping
    runs: list[Measurement]
    before: np.ndarray
    after: np.ndarray
    refused: list[str]


def ladder(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each rung, and for the product and the ends of each ladder."""
    by_task: dict[tuple, list[Measurement]] = {}
    for run in evidence.series:
        by_task.setdefault((run["dataset"], run["workload"]), []).append(run)
    for (dataset, workload), runs in by_task.items():
        task = {"dataset": dataset, "workload": workload}
        for name, rungs in groupby(evidence.rungs, key=lambda rung: rung["ladder"]):
            # The ends come last. A ladder with one rung has only this rung.
            *of_rungs, of_ends = (_series(runs, rung) for rung in rungs)
            rows = [*map(_row, of_rungs)]
            if of_rungs:
                rows.append(_product(of_rungs, of_ends))
            for row in (*rows, _row(of_ends)):
                yield task | {"ladder": name} | row | base.data_of(runs[0], base.ABOUT)


def _series(runs: Sequence[Measurement], rung: Mapping) -> _Series:
    """Match the runs of the two sides of a rung, and take the newest match of each repeat."""
    runs = [run for run in runs if run["series"] == rung["name"]]
    timed = base.by_configuration(filter(base.is_timed, runs))
    by_side = {names[2:]: side_runs for names, side_runs in timed.items()}
    before, after = (by_side.get(tuple(rung[side]), ()) for side in ("before", "after"))
    matches = leave_out_disturbed(newest_of_repeats(match_runs(after, before))).matches
    seconds = [[*map(base.wall_per_epoch, pair)] for pair in matches.pairs]
    known = np.array([pair for pair in seconds if None not in pair], float).reshape(-1, 2)
    after_seconds, before_seconds = known.T
    return _Series(rung, runs, before_seconds, after_seconds, matches.refused)


def _row(series: _Series) -> dict:
    """Return the row of a rung, or of the ends of a ladder."""
    rung, before, after = series.rung, series.before, series.after
    number = len(before)
    failed = [run for run in series.runs if run["current"] and run["status"] != "ok"]
    if number:
        reason = why_left_out(number, series.refused)
    elif failed:
        run = failed[0]
        why = f": {run['reason']}" if run["reason"] else ""
        reason = f"{run['variant']} rep {run['repeat']}: {run['status']}{why}"
    else:
        reason = "; ".join(dict.fromkeys(series.refused))
        reason = reason or "no two runs that ended ok and were not resumed share session and repeat"
    return {
        "part": RUNG if rung["number"] else DIRECT,
        "rung": rung["number"],
        "change": rung["change"],
        **_ends(series),
        "oversubscribed": _shares_cores(series),
        "matches": number,
        "kind": "measured" if number else "unavailable",
        "reason": reason,
        **ratio_interval(after / before).columns("ratio"),
        **difference_interval(before - after).columns("cost", "_seconds"),
    }


def _product(of_rungs: Sequence[_Series], of_ends: _Series) -> dict:
    """Return the row of the product of the ratios of all rungs of a ladder."""
    missing = [str(series.rung["number"]) for series in of_rungs if not len(series.before)]
    ratios = [series.after / series.before for series in (*of_rungs, of_ends)]
    costs = [series.before - series.after for series in of_rungs]
    ratio = combine_intervals(ratios[:-1], np.prod, centre=geometric_pseudo_median)
    cost = combine_intervals(costs, np.sum, centre=pseudo_median)
    product_to_ends = combine_intervals(
        ratios,
        lambda centres, axis: np.prod(centres[:-1], axis=axis) / centres[-1],
        centre=geometric_pseudo_median,
    )
    return {
        "part": PRODUCT,
        **_ends(of_ends),
        "oversubscribed": any(map(_shares_cores, of_rungs)),
        "matches": min(len(series.before) for series in of_rungs),
        "kind": "unavailable" if missing else "measured",
        "reason": f"no ratio of rung {', '.join(missing)}" if missing else None,
        **ratio.columns("ratio"),
        **cost.columns("cost", "_seconds"),
        **product_to_ends.columns("product_to_ends"),
    }


def _ends(series: _Series) -> dict[str, str]:
    """Return the columns `before` and `after`: the configurations that a series compares."""
    return {side: str(Configuration(*series.rung[side])) for side in ("before", "after")}


def _shares_cores(series: _Series) -> bool:
    return any(run["ranks"]["oversubscribed"] for run in series.runs)


def noise(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each reference that the experiment runs twice in each repeat."""
    first = base.by_configuration(filter(base.is_timed, evidence.runs))
    for names, duplicates in base.by_configuration(evidence.duplicates).items():
        newest = newest_of_repeats(
            match_runs(filter(base.is_timed, duplicates), first.get(names, ()))
        )
        matches, _, stays_disturbed = leave_out_disturbed(newest)
        number = len(matches.runs)
        ratio = ratio_interval(base.ratios(matches), level=evidence.level)
        why_none = (
            "no second run that ended ok, not resumed, shares session and repeat with a first one"
        )
        if any(run["current"] and run["status"] != "ok" for run in duplicates):
            why_none = f"second runs failed: {base.failures(duplicates)}"
        yield {
            **base.name_columns(names),
            "matches": number,
            "sessions": len({run["session"] for run in matches.runs}),
            "kind": base.least_certain(map(base.kind, (*matches.runs, *matches.references))),
            "reason": why_left_out(number, matches.refused) if number else why_none,
            **ratio.columns("ratio"),
            "floor": None
            if stays_disturbed or number < MATCHES_FOR_INTERVAL
            else noise_floor(ratio),
            **base.data_of(duplicates[0], base.ABOUT),
        }


def drift(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each session, with how its times changed."""
    sessions: dict[str, list] = {}
    for run in filter(base.is_timed, (*evidence.runs, *evidence.duplicates)):
        if not is_fit(run):
            sessions.setdefault(run["session"], []).append(run)
    for session, runs in sorted(sessions.items()):
        by_names = base.by_configuration(runs)
        starts = {
            names: [datetime.fromisoformat(run["started"]).timestamp() for run in same]
            for names, same in by_names.items()
        }
        times = {names: [*map(base.seconds_per_epoch, same)] for names, same in by_names.items()}
        drifted = drift_of(starts, times)
        every = [start for same in starts.values() for start in same]
        change = drifted.change if drifted else Interval(None, None, None)
        reason = "all runs began at the same moment"
        if len(runs) < MIN_MEASUREMENTS:
            reason = f"{len(runs)} runs, and a drift is judged by at least {MIN_MEASUREMENTS}"
        yield {
            "session": session,
            "runs": len(runs),
            "configurations": len(by_names),
            "seconds": max(every) - min(every),
            "kind": "measured" if drifted else "unavailable",
            "reason": None if drifted else reason,
            **change.columns("change"),
            "p_value": drifted.p_value if drifted else None,
            "detected": drifted.detected if drifted else None,
        }
