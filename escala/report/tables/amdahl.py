"""Build the table of the part of a run that more processes do not make faster.

Amdahl (1967, *Validity of the single processor approach to achieving large scale computing
capabilities*, AFIPS Conference Proceedings 30) divides the time of one process, T(1), into a part s
that stays as it is and a part 1 − s that n processes divide: T(n) / T(1) = s + (1 − s) / n. Karp
and Flatt (1990, *Measuring parallel processor performance*, Communications of the ACM 33) solve
this for s, given a measured speed-up. This s holds every loss: work that is not divided, exchange,
and waiting.

The time of a run is that after its set-up: training, validation, averaging, checkpoints, evaluation
and saving. Start-up, loading, building and the first steps take the same for any number of epochs.
A pair of runs of which one of these times is unknown is left out: unknown is not 0.

`escala.analysis.laws` are fitted to the training steps of an epoch, which are also known of a
program. A law is over ranks, each with the cores of one of the reference, or over threads, which
are cores of the same ranks. Its speed-up with twice the cores of the largest measured point is an
extrapolation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from escala.analysis import laws
from escala.analysis.statistics import Interval, median_interval, ratio_interval
from escala.experiment.references import Configuration
from escala.record.comparable import CONFIGURATION, Measurement, Pairs, left_out
from escala.report.tables import speedup
from escala.report.tables.base import Evidence, is_cut
from escala.runtime.layout import Layout

#: Parts of a run after its set-up that are never divided among processes, besides evaluation.
_UNDIVIDED = ("averaging", "checkpoint", "save")
#: Parts that processes may divide.
_EVALUATION = ("validation", "evaluation")
#: What the points of a law differ in.
RANKS, THREADS = "ranks", "threads"
#: Laws are extrapolated to so many times the cores of their largest point.
EXTRAPOLATED = 2
_OF_SPEEDUP = (
    *CONFIGURATION, "reference", *(f"reference_{part}" for part in Configuration._fields),
    "ranks", "cores", "reference_cores", "provenance", "leaky",
)  # fmt: skip


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each configuration and each reference that it is compared with."""
    compared = list(speedup.comparisons(evidence))
    trained = list(speedup.rows(evidence))
    found = [
        _row(of_training, *_whole_pairs(each.pairs))
        for each, of_training in zip(compared, trained, strict=True)
    ]
    points = [_Point.of(*each) for each in zip(compared, trained, strict=True)]
    law = cache(lambda series: _law([each for each in points if each.series == series]))
    for row, point in zip(found, points, strict=True):
        alike = [each for each in found if _series(each) == _series(row)]
        yield row | _fitted(alike) | law(point.series)


def _row(of_training: Mapping, pairs: Sequence[tuple], refused: Sequence[str]) -> dict:
    """Return the row of a configuration, without what is fitted over several layouts."""
    spent = [tuple(map(seconds, pair)) for pair in pairs]
    totals = [(sum(mine.values()), sum(theirs.values())) for mine, theirs in spent]
    ratio = ratio_interval([mine / theirs for mine, theirs in totals])
    gained, times = speedup.inverse(ratio), _times(of_training)
    undivided = [undivided_of(*pair) for pair in pairs]
    known = [number for number, parts in enumerate(undivided) if parts is not None]
    seconds_of = [sum(spent[number][0][part] for part in undivided[number]) for number in known]
    shares = [
        sum(spent[number][1][part] for part in undivided[number]) / totals[number][1]
        for number in known
    ]
    share = median_interval(shares)
    reason = left_out(len(pairs), refused) if of_training["pairs"] else of_training["reason"]
    return {
        **{key: of_training[key] for key in _OF_SPEEDUP},
        "pairs": len(pairs),
        "kind": "measured" if pairs else "unavailable",
        "reason": reason,
        **{
            f"train_{name}": of_training[name]
            for name in ("speedup", "speedup_low", "speedup_high", "efficiency")
        },
        "train_serial_fraction": karp_flatt(of_training["speedup"], times),
        **gained.columns("speedup"),
        "efficiency": gained.estimate / times if gained.estimate and times else None,
        **_karp_flatt_interval(gained, times).columns("serial_fraction"),
        "undivided_seconds": median_interval(seconds_of).estimate,
        **share.columns("undivided_share"),
        "possible_speedup": None
        if share.estimate is None or not times
        else 1 / amdahl(share.estimate, times),
    }


def seconds(run: Measurement) -> dict[str, float]:
    """Return the seconds of each part of a run after its set-up.

    Raises
    ------
    KeyError : the record lacks one of them.
    """
    parts = {"train": run["seconds"]["train"], "validation": 0.0}
    if run["training"]["validated_on"] is not None:
        parts["validation"] = sum(epoch["validation_seconds"] for epoch in run["epochs"])
    return parts | {name: run["seconds"][name] for name in (*_UNDIVIDED, "evaluation")}


def undivided_parts(run: Measurement) -> list[str] | None:
    """Return the parts of a run that its ranks do not divide; None if that is unknown."""
    evaluating = run["ranks"].get("evaluating")
    if evaluating is None or run["ranks"]["asked"] == 1:
        return None
    return [*_UNDIVIDED, *(_EVALUATION if evaluating == 1 else ())]


def undivided_of(mine: Measurement, theirs: Measurement) -> list[str] | None:
    """Return the parts that neither run of a pair divides; None if they divide different parts."""
    parts = undivided_parts(mine)
    return parts if theirs["ranks"]["asked"] == 1 or undivided_parts(theirs) == parts else None


def amdahl(serial: float, times: float) -> float:
    """Return T(n) / T(1) of a serial fraction and n processes."""
    return serial + (1 - serial) / times


def karp_flatt(gained: float | None, times: float | None) -> float | None:
    """Return the serial fraction of a speed-up by n processes; None without one, or if n is 1.

    It is negative if the speed-up exceeds n.
    """
    if not gained or not times or times <= 1:
        return None
    return (1 / gained - 1 / times) / (1 - 1 / times)


def fitted_fraction(times: Sequence[float], ratios: Sequence[float]) -> float:
    """Return the s of T(n) / T(1) = s + (1 − s) / n with the least sum of squared differences.

    Parameters
    ----------
    times : n of each point, above 1.
    ratios : T(n) / T(1) of each point.
    """
    even = 1 / np.asarray(times, float)
    weights = 1 - even
    return float(weights @ (np.asarray(ratios, float) - even) / (weights @ weights))


def _karp_flatt_interval(gained: Interval, times: float | None) -> Interval:
    low, high = karp_flatt(gained.high, times), karp_flatt(gained.low, times)
    return Interval(karp_flatt(gained.estimate, times), low, high)


def _times(of_training: Mapping) -> float | None:
    """Return how many times the cores of the reference a configuration has."""
    baseline = of_training["reference_cores"]
    return of_training["cores"] / baseline if baseline else None


def _whole_pairs(of_training: Pairs) -> tuple[list[tuple], list[str]]:
    """Return the pairs whose whole times can be compared, and why each other cannot."""
    pairs, refused = [], list(of_training.refused)
    for pair in zip(of_training.runs, of_training.references, strict=True):
        reason = _refusal(*pair)
        if reason is None:
            pairs.append(pair)
        else:
            refused.append(reason)
    return pairs, refused


def _refusal(mine: Measurement, theirs: Measurement) -> str | None:
    """Return why the whole times of two runs cannot be compared, or None."""
    if mine["training"]["kind"] == "command":
        return "a program does not tell what it does besides its epochs"
    if is_cut(mine) or is_cut(theirs):
        return "epochs were cut to some of their steps"
    if len(mine["epochs"]) != len(theirs["epochs"]):
        return "the runs made different numbers of epochs"
    try:
        known = [*seconds(mine).values(), *seconds(theirs).values()]
    except KeyError as error:
        return f"an older record lacks the seconds of {error.args[0]}"
    return None if None not in known else "a part of a run has no time"


class _Point(NamedTuple):
    """A configuration as a point of a law.

    Attributes
    ----------
    series : what the points of a law have in common; the first part is `OVER`, None if a law is
        over neither.
    times : n, the cores divided by those of the reference.
    ratios : T(n) / T(1) by repeat; none if its ranks had to share cores.
    """

    series: tuple
    times: float
    ratios: Mapping[int, float]

    @classmethod
    def of(cls, compared: speedup.Comparison, row: Mapping) -> _Point:
        times, runs = _times(row) or 1.0, compared.pairs.runs
        of_reference = Layout.parse(row["reference_layout"]).ranks
        over = None
        if row["ranks"] * (row["reference_cores"] or 0) == of_reference * (row["cores"] or 0):
            over = RANKS
        elif row["ranks"] == of_reference:
            over = THREADS
        knobs = (
            {k: v for k, v in runs[0]["knobs"].items() if k != "cores_per_process"}
            if runs
            else None
        )
        last = (
            (row["layout"], row["global_batch"], json.dumps(knobs, sort_keys=True))
            if over == THREADS
            else (row["variant"],)
        )
        keys = ("dataset", "workload", "strategy", "network", "reference")
        ratios = {} if row["oversubscribed"] else speedup.epoch_ratios(compared.pairs)
        return cls((over, *(row[key] for key in keys), *last), times, ratios)


def _law(points: Sequence[_Point]) -> dict:
    """Return the columns of the laws over some points."""
    over = points[0].series[0]
    points = [each for each in points if each.times > 1 and each.ratios]
    if over is None or not points:
        reason = f"nothing with more {over or RANKS} than the reference has a ratio"
        if over is None:
            reason = "both ranks and threads differ from the reference's"
        return {"law_kind": "unavailable", "law_reason": reason}
    repeats = sorted(set.intersection(*(set(each.ratios) for each in points)))
    if not repeats:
        return {"law_kind": "unavailable", "law_reason": "the points have no repeat in common"}
    times = [each.times for each in points]
    found = laws.fitted(times, [[each.ratios[n] for each in points] for n in repeats])
    most, universal = EXTRAPOLATED * max(times), found.universal is not None
    reason = None if universal else "the universal law needs three numbers of cores, here are two"
    if len(repeats) < laws.REPEATS_FOR_INTERVAL:
        few = f"no interval with {len(repeats)} repeats in common"
        reason = "; ".join(filter(None, [reason, few]))
    return {
        "law_kind": "estimated",
        "law_reason": reason,
        "law_over": over,
        "law_points": len(set(times)) + 1,
        "law_repeats": len(repeats),
        **laws.interval(found.serial).columns("amdahl_fraction"),
        **found.contention.columns("contention"),
        **found.coherency.columns("coherency"),
        **found.fastest.columns("fastest_times"),
        "extrapolated_times": most,
        **found.speedup(most).columns("extrapolated_speedup"),
    }


def _series(row: Mapping) -> tuple:
    """Return what layouts over which a fraction is fitted have in common."""
    keys = ("dataset", "workload", "strategy", "variant", "network", "reference")
    return tuple(row[key] for key in keys)


def _fitted(alike: Sequence[Mapping]) -> dict:
    """Return the serial fraction fitted over the layouts of some rows."""
    points = [
        (_times(row), 1 / row["speedup"])
        for row in alike
        if row["speedup"] and (_times(row) or 1) > 1
    ]
    return {
        "fitted_layouts": len(points),
        "fitted_serial_fraction": fitted_fraction(*zip(*points, strict=True)) if points else None,
    }
