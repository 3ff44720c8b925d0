"""The table of the part of a run that more processes do not make faster.

Amdahl (1967, *Validity of the single processor approach to achieving large scale computing
capabilities*, AFIPS Conference Proceedings 30) divides the time of one process, T(1), into a part s
that stays as it is and a part 1 − s that n processes divide: T(n) / T(1) = s + (1 − s) / n. Karp
and Flatt (1990, *Measuring parallel processor performance*, Communications of the ACM 33) solve
this for s, given a measured speed-up. This s holds every loss: work that is not divided, exchange,
and waiting.

The time of a run is that after its set-up: training, validation, averaging, checkpoints, evaluation
and saving. Start-up, loading, building and the first steps take the same for any number of epochs.
A match of runs of which one of these times is unknown is left out: unknown is not 0.

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

from escala.analysis import laws
from escala.analysis.comparable import CONFIGURATION, Matched, Measurement, why_left_out, work
from escala.analysis.statistics import Interval, inverse, median_interval, ratio_interval
from escala.analysis.tables import records
from escala.experiment.runs import Configuration, one_process
from escala.report.tables.base import ABOUT, EPOCH, Evidence, Tables, is_cut, ratios
from escala.report.tables.speedup import Comparison, comparisons

#: Parts of a run after its set-up that are never divided among processes, besides evaluation.
_UNDIVIDED = ("averaging", "checkpoint", "save")
#: Parts that processes may divide.
_EVALUATION = ("validation", "evaluation")
#: What the points of a law differ in.
RANKS, THREADS = "ranks", "threads"
#: Why there is no law.
_WEAK = "the scaling is weak: these laws are of a fixed amount of work"
_BOTH = "both ranks and threads differ from the reference's"
_ENGINES = "the reference has another engine: the ratio is not that of ranks alone"
_VARIANTS = "the reference has another variant: the ratio is not that of ranks alone"
#: Laws are extrapolated to this multiple of the cores of their largest point.
EXTRAPOLATED = 2
_OF_SPEEDUP = (
    *CONFIGURATION, "reference", *(f"reference_{part}" for part in Configuration._fields),
    "ranks", "cores", "reference_cores", *ABOUT,
)  # fmt: skip


def amdahl(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each configuration and each reference that it is compared with."""
    epoch_rows = [row for row in records(tables["speedup"]) if row["basis"] == EPOCH]
    both = list(zip(comparisons(evidence), epoch_rows, strict=True))
    points = [_Point.of(*pair) for pair in both]
    law = cache(lambda series: _law([point for point in points if point.series == series]))
    for (compared, row), point in zip(both, points, strict=True):
        yield _row(row, *_whole(compared.newest)) | law(point.series)


def _row(trained: Mapping, matches: Sequence[tuple], refused: Sequence[str]) -> dict:
    """Return the row of a configuration, without what is fitted over several layouts.

    Parameters
    ----------
    trained : its row of the table `speedup`, on the basis of an epoch.
    matches : run and reference of each match whose whole times can be compared.
    """
    spent = [tuple(map(seconds, match)) for match in matches]
    totals = [(sum(mine.values()), sum(theirs.values())) for mine, theirs in spent]
    gained = inverse(ratio_interval([mine / theirs for mine, theirs in totals]))
    undivided = [
        sum(theirs[part] for part in parts) / total
        for match, (_, theirs), (_, total) in zip(matches, spent, totals, strict=True)
        if (parts := serial_parts_of_both(*match)) is not None
    ]
    fraction = median_interval(undivided)
    times = _times(trained)
    fractions = [karp_flatt(gain, times) for gain in (gained.estimate, gained.high, gained.low)]
    return {
        **{key: trained[key] for key in _OF_SPEEDUP},
        "matches": len(matches),
        "kind": "measured" if matches else "unavailable",
        "reason": why_left_out(len(matches), refused) if trained["matches"] else trained["reason"],
        "train_speedup": trained["speedup"],
        **gained.columns("speedup"),
        **Interval(*fractions).columns("serial_fraction"),
        **fraction.columns("undivided_fraction"),
        "possible_speedup": None
        if fraction.estimate is None or not times
        else 1 / laws.ratio(times, fraction.estimate),
    }


def seconds(run: Measurement) -> dict[str, float | None]:
    """Return the seconds of each part of a run after its set-up."""
    parts = {"train": run["seconds"]["train"], "validation": 0.0}
    if run["training"]["validated_on"] is not None:
        parts["validation"] = sum(epoch["validation_seconds"] for epoch in run["epochs"])
    return parts | {name: run["seconds"][name] for name in (*_UNDIVIDED, "evaluation")}


def serial_parts(run: Measurement) -> list[str] | None:
    """Return the parts of a run that its ranks do not divide; None if that is unknown."""
    evaluating = run["ranks"].get("evaluating")
    if evaluating is None or run["ranks"]["asked"] == 1:
        return None
    return [*_UNDIVIDED, *(_EVALUATION if evaluating == 1 else ())]


def serial_parts_of_both(mine: Measurement, theirs: Measurement) -> list[str] | None:
    """Return the parts that neither run of a match divides; None if they divide different parts."""
    parts = serial_parts(mine)
    return parts if theirs["ranks"]["asked"] == 1 or serial_parts(theirs) == parts else None


def karp_flatt(gained: float | None, times: float | None) -> float | None:
    """Return the serial fraction of a speed-up by n processes; None without one, or if n is 1.

    It is negative if the speed-up exceeds n.
    """
    if not gained or not times or times <= 1:
        return None
    return (1 / gained - 1 / times) / (1 - 1 / times)


def _times(row: Mapping) -> float | None:
    """Return how many times the cores of the reference a configuration has."""
    baseline = row["reference_cores"]
    return row["cores"] / baseline if baseline else None


def _whole(matched: Matched) -> tuple[list[tuple], list[str]]:
    """Return the matches whose whole times can be compared, and why each other cannot."""
    matches, refused = [], list(matched.refused)
    for match in matched.pairs:
        reason = _refusal(*match)
        if reason is None:
            matches.append(match)
        else:
            refused.append(reason)
    return matches, refused


def _refusal(mine: Measurement, theirs: Measurement) -> str | None:
    """Return why the whole times of two runs cannot be compared, or None."""
    if work(mine, theirs) != 1:
        return _WEAK
    if "program" in mine:
        return "a program does not tell what it does besides its epochs"
    if is_cut(mine) or is_cut(theirs):
        return "epochs were cut to some of their steps"
    if len(mine["epochs"]) != len(theirs["epochs"]):
        return "the runs made different numbers of epochs"
    known = [*seconds(mine).values(), *seconds(theirs).values()]
    return None if None not in known else "a part of a run has no time"


class _Point(NamedTuple):
    """A configuration as a point of a law.

    Attributes
    ----------
    series : what the points of a law have in common. The first part is `RANKS` or `THREADS`, or
        None if there is no law, and then the last part tells why.
    times : n, the cores divided by those of the reference.
    ratios : T(n) / T(1) by repeat; none if its ranks had to share cores.
    """

    series: tuple
    times: float
    ratios: Mapping[int, float]

    @classmethod
    def of(cls, compared: Comparison, row: Mapping) -> _Point:
        runs, reference_ranks = compared.newest.runs, compared.reference.layout.ranks
        over, last = None, (_BOTH,)
        engines = {one_process(row[side]) for side in ("strategy", "reference_strategy")}
        if row["work"] != 1:
            last = (_WEAK,)
        elif len(engines) > 1:
            last = (_ENGINES,)
        elif row["ranks"] * (row["reference_cores"] or 0) == reference_ranks * (row["cores"] or 0):
            over, last = RANKS, (row["variant"],)
            if row["variant"] != row["reference_variant"]:
                over, last = None, (_VARIANTS,)
        elif row["ranks"] == reference_ranks:
            over = THREADS
            knobs = runs[0]["knobs"] | {"cores_per_process": None} if runs else None
            last = (row["layout"], row["global_batch"], json.dumps(knobs, sort_keys=True))
        keys = ("dataset", "workload", "strategy", "network", "reference")
        repeats = [] if row["oversubscribed"] else [run["repeat"] for run in runs]
        by_repeat = dict(zip(repeats, map(float, ratios(compared.newest)), strict=False))
        return cls((over, *(row[key] for key in keys), *last), _times(row) or 1.0, by_repeat)


def _law(points: Sequence[_Point]) -> dict:
    """Return the columns of the laws over some points."""
    over, reason = points[0].series[0], points[0].series[-1]
    points = [point for point in points if point.times > 1 and point.ratios]
    repeats = sorted(set.intersection(*(set(point.ratios) for point in points))) if points else []
    times = [point.times for point in points]
    if over and not points:
        reason = f"nothing with more {over} than the reference has a ratio"
    elif over and not repeats:
        reason = "the points have no repeat in common"
    elif over and len(set(times)) < laws.LEAST_POINTS:
        reason = f"any law goes through one number of {over}: measure a further one"
        over = None
    if over is None or not repeats:
        return {"law_kind": "unavailable", "law_reason": reason}
    fit = laws.fit(times, [[point.ratios[n] for point in points] for n in repeats])
    most = EXTRAPOLATED * max(times)
    return {
        "law_kind": "estimated",
        "law_reason": None
        if len(repeats) >= laws.REPEATS_FOR_INTERVAL
        else f"no interval with {len(repeats)} repeats in common",
        "law_over": over,
        "law_points": len(set(times)) + 1,
        **laws.interval(fit.serial).columns("amdahl_fraction"),
        **fit.contention.columns("contention"),
        **fit.coherency.columns("coherency"),
        **fit.fastest.columns("fastest_times"),
        "extrapolated_times": most,
        **fit.speedup(most).columns("extrapolated_speedup"),
    }
