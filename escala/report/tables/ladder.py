"""The table of ladders: the ratio of each change from one configuration to another.

Each rung, from one configuration to the next, is a separate series, in which the two take turns.
So are the two ends. The ratios of the rungs were measured at different times, with different
runs. So their product equals the ratio of the ends only if the rungs explain the whole difference.

A time is that of a whole epoch, `epoch_wall_seconds`, because checkpoints are not written within
the training steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from escala.analysis.comparable import (
    CONFIGURATION,
    Measurement,
    left_out,
    matched,
    newest_of_repeats,
)
from escala.analysis.statistics import (
    combined_interval,
    difference_interval,
    geometric_pseudo_median,
    pseudo_median,
    ratio_interval,
)
from escala.analysis.verdicts import leave_out_disturbed
from escala.experiment.runs import Configuration
from escala.report.tables import base
from escala.report.tables.base import Evidence, Tables

RUNG, PRODUCT, DIRECT = "rung", "product", "direct"
#: Largest difference of the product of the ratios from the ratio of the ends, as a fraction of it.
TOLERANCE = 0.1


class _Series(NamedTuple):
    """The matches of two configurations: an `escala.experiment.Rung`, and seconds by repeat.

    Attributes
    ----------
    runs : all of the series.
    before, after : seconds of an epoch in each match, shape (matches,).
    refused : why other matches have no ratio.
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
            for row in _rows([_series(runs, rung) for rung in rungs]):
                yield task | {"ladder": name} | row | base.data_of(runs[0], base.ABOUT)


def _rows(series: list[_Series]) -> Iterator[dict]:
    compared = list(map(_compared, series))
    if len(series) == 1:
        yield compared[0]
    else:
        *rungs, direct = compared
        yield from (*rungs, _product(rungs, direct, series), direct)


def _series(runs: Sequence[Measurement], rung: Mapping) -> _Series:
    """Set the two sides of a rung against each other, in the newest match of each repeat."""
    runs = [run for run in runs if run["series"] == rung["name"]]
    before, after = (
        [
            r
            for r in filter(base.is_timed, runs)
            if [r[key] for key in CONFIGURATION[2:]] == [*rung[side]]
        ]
        for side in ("before", "after")
    )
    found = leave_out_disturbed(newest_of_repeats(matched(after, before))).matches
    seconds = [
        [*map(base.wall_per_epoch, match)]
        for match in zip(found.references, found.runs, strict=True)
    ]
    known = np.array([each for each in seconds if None not in each], float).reshape(-1, 2)
    return _Series(rung, runs, *known.T, found.refused)


def _compared(series: _Series) -> dict:
    rung, before, after = series.rung, series.before, series.after
    number = len(before)
    return {
        "part": RUNG if rung["number"] else DIRECT,
        "rung": rung["number"],
        "change": rung["change"],
        **{side: str(Configuration(*rung[side])) for side in ("before", "after")},
        "oversubscribed": any(run["ranks"]["oversubscribed"] for run in series.runs),
        "matches": number,
        "kind": "measured" if number else "unavailable",
        "reason": left_out(number, series.refused) if number else _reason(series),
        **ratio_interval(after / before).columns("ratio"),
        "before_seconds": float(np.median(before)) if number else None,
        "after_seconds": float(np.median(after)) if number else None,
        **difference_interval(before - after).columns("cost", "_seconds"),
    }


def _product(rungs: list[dict], direct: dict, series: list[_Series]) -> dict:
    """Return the product of the rungs, and its comparison with the ends, the last of `series`."""
    missing = [str(row["rung"]) for row in rungs if not row["matches"]]
    ratios = [each.after / each.before for each in series]
    ratio = combined_interval(ratios[:-1], np.prod, centre=geometric_pseudo_median)
    cost = combined_interval(
        [each.before - each.after for each in series[:-1]], np.sum, centre=pseudo_median
    )
    direct_ratio = combined_interval(
        ratios,
        lambda centres, axis: np.prod(centres[:-1], axis=axis) / centres[-1],
        centre=geometric_pseudo_median,
    )
    return {
        "before": direct["before"],
        "after": direct["after"],
        "part": PRODUCT,
        "oversubscribed": any(row["oversubscribed"] for row in rungs),
        "matches": min(row["matches"] for row in rungs),
        "kind": "unavailable" if missing else "measured",
        "reason": f"no ratio of rung {', '.join(missing)}" if missing else None,
        **ratio.columns("ratio"),
        **cost.columns("cost", "_seconds"),
        **direct_ratio.columns("product_to_ends"),
    }


def _reason(series: _Series) -> str:
    """Return why a rung has no ratio."""
    failed = (run for run in series.runs if run["current"] and run["status"] != "ok")
    if first := next(failed, None):
        why = f": {first['reason']}" if first["reason"] else ""
        return f"{first['variant']} rep {first['repeat']}: {first['status']}{why}"
    none = "no two runs that ended ok and were not resumed share session and repeat"
    return "; ".join(dict.fromkeys(series.refused)) or none
