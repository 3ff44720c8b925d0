"""The table of the part of a run that more processes do not make faster.

Amdahl (1967, *Validity of the single processor approach to achieving large scale computing
capabilities*, AFIPS Conference Proceedings 30) divides the time of one process, T(1), into a part s
that stays as it is and a part 1 − s that n processes divide: T(n) / T(1) = s + (1 − s) / n. Karp
and Flatt (1990, *Measuring parallel processor performance*, Communications of the ACM 33) solve
this for s, given a measured speed-up. This s contains every loss: work that is not divided,
exchange, and waiting.

The time of a run is counted from the end of its set-up: training, validation, averaging,
checkpoints, evaluation and saving. The set-up (start-up, loading, building and the first steps)
takes the same time for any number of epochs. A match is left out if a counted part has an unknown
time: unknown is not 0.

The laws of `escala.analysis.laws` are fitted to the training time of an epoch, which programs have
too. A law over ranks adds ranks, each with as many cores as a rank of the reference. A law over
threads adds cores to the ranks of the reference. The speed-up that a law gives for twice the cores
of the largest measured point is an extrapolation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from escala.analysis import laws
from escala.analysis.comparable import CONFIGURATION, Measurement, why_left_out, work
from escala.analysis.statistics import Interval, inverse, median_interval, ratio_interval
from escala.analysis.tables import records
from escala.experiment.runs import Configuration, one_process
from escala.report.tables.base import ABOUT, EPOCH, Evidence, Tables, is_cut, ratios
from escala.report.tables.speedup import Comparison, comparisons

#: Parts of a run after its set-up that processes never divide.
_UNDIVIDED = ("averaging", "checkpoint", "save")
#: Parts that processes may divide.
_EVALUATION = ("validation", "evaluation")
#: The quantity in which the points of a law differ.
RANKS, THREADS = "ranks", "threads"
#: Why there is no law.
_WEAK = "the scaling is weak: these laws hold for a fixed amount of work"
_BOTH = "both ranks and threads differ from the reference's"
_ENGINES = "the reference has another engine, so the ratio shows more than the ranks"
_VARIANTS = "the reference has another variant, so the ratio shows more than the ranks"
#: Laws are extrapolated to this multiple of the cores of their largest point.
EXTRAPOLATED = 2
_OF_SPEEDUP = (
    *CONFIGURATION, "reference", *(f"reference_{part}" for part in Configuration._fields),
    "ranks", "cores", "reference_cores", *ABOUT,
)  # fmt: skip


def amdahl(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each configuration and each reference that it is compared with."""
    epoch_rows = [row for row in records(tables["speedup"]) if row["basis"] == EPOCH]
    compared = list(comparisons(evidence))
    points = [_Point.of(*pair) for pair in zip(compared, epoch_rows, strict=True)]
    law = cache(lambda series: _law([point for point in points if point.series == series]))
    for comparison, row, point in zip(compared, epoch_rows, points, strict=True):
        matches, refused = [], list(comparison.newest.refused)
        for match in comparison.newest.pairs:
            reason = _refusal(*match)
            if reason is None:
                matches.append(match)
            else:
                refused.append(reason)
        yield _row(row, matches, refused) | law(point.series)


def _row(speedup_row: Mapping, matches: Sequence[tuple], refused: Sequence[str]) -> dict:
    """Return the row of a configuration, without the columns of laws.

    Parameters
    ----------
    speedup_row : its row of the table `speedup`, on the basis of an epoch.
    matches : run and reference of each match with comparable whole times.
    refused : the reasons why other matches have no comparable whole times.
    """
    ratios_of_totals, undivided = [], []
    for run, reference in matches:
        parts_of_reference = seconds(reference)
        total = sum(parts_of_reference.values())
        ratios_of_totals.append(sum(seconds(run).values()) / total)
        serial = serial_parts_of_both(run, reference)
        if serial is not None:
            undivided.append(sum(parts_of_reference[part] for part in serial) / total)
    level = speedup_row["level"]
    gain = inverse(ratio_interval(ratios_of_totals, level=level))
    fraction = median_interval(undivided, level=level)
    times = _times_the_cores(speedup_row)
    # A higher speed-up has a lower serial fraction.
    fractions = [karp_flatt(factor, times) for factor in (gain.estimate, gain.high, gain.low)]
    possible = None
    if fraction.estimate is not None and times:
        possible = 1 / laws.ratio(times, fraction.estimate)
    reason = speedup_row["reason"]
    if speedup_row["matches"]:
        reason = why_left_out(len(matches), refused)
    return {
        **{key: speedup_row[key] for key in _OF_SPEEDUP},
        "matches": len(matches),
        "kind": "measured" if matches else "unavailable",
        "reason": reason,
        "train_speedup": speedup_row["speedup"],
        **gain.columns("speedup"),
        **Interval(*fractions).columns("serial_fraction"),
        **fraction.columns("undivided_fraction"),
        "possible_speedup": possible,
    }


def seconds(run: Measurement) -> dict[str, float | None]:
    """Return the seconds of each part of a run after its set-up."""
    parts = {"train": run["seconds"]["train"], "validation": 0.0}
    if run["training"]["validated_on"] is not None:
        parts["validation"] = sum(epoch["validation_seconds"] for epoch in run["epochs"])
    return parts | {name: run["seconds"][name] for name in (*_UNDIVIDED, "evaluation")}


def serial_parts(run: Measurement) -> list[str] | None:
    """Return the parts of a run that its ranks do not divide; None if these parts are unknown."""
    evaluating = run["ranks"].get("evaluating")
    if evaluating is None or run["ranks"]["asked"] == 1:
        return None
    return [*_UNDIVIDED, *(_EVALUATION if evaluating == 1 else ())]


def serial_parts_of_both(run: Measurement, reference: Measurement) -> list[str] | None:
    """Return the parts that neither run of a match divides; None if they divide different parts."""
    parts = serial_parts(run)
    is_alike = reference["ranks"]["asked"] == 1 or serial_parts(reference) == parts
    return parts if is_alike else None


def karp_flatt(speedup: float | None, times: float | None) -> float | None:
    """Return the serial fraction of a speed-up by n processes; None if n is 1.

    The fraction is negative if the speed-up exceeds n, and None if the speed-up is None.

    Parameters
    ----------
    times : n, the cores divided by the reference's cores.
    """
    if not speedup or not times or times <= 1:
        return None
    return (1 / speedup - 1 / times) / (1 - 1 / times)


def _times_the_cores(row: Mapping) -> float | None:
    """Return the cores of a configuration divided by those of its reference."""
    reference_cores = row["reference_cores"]
    return row["cores"] / reference_cores if reference_cores else None


def _refusal(run: Measurement, reference: Measurement) -> str | None:
    """Return why the whole times of two runs cannot be compared, or None."""
    if work(run, reference) != 1:
        return _WEAK
    if "program" in run:
        return "a program does not tell what it does besides its epochs"
    if is_cut(run) or is_cut(reference):
        return "epochs were cut to some of their steps"
    if len(run["epochs"]) != len(reference["epochs"]):
        return "the runs made different numbers of epochs"
    if None in [*seconds(run).values(), *seconds(reference).values()]:
        return "a part of a run has no time"
    return None


class _Point(NamedTuple):
    """A configuration as a point of a law.

    Attributes
    ----------
    series : equal for the points of one law. The first item is the quantity in which these points
        differ, `RANKS` or `THREADS`. Without a law the first item is None, and the last item is the
        reason.
    times : n, the cores divided by those of the reference.
    ratios : T(n) / T(1) by repeat; empty if ranks shared cores.
    """

    series: tuple
    times: float
    ratios: Mapping[int, float]

    @classmethod
    def of(cls, compared: Comparison, row: Mapping) -> _Point:
        """Return the point of a comparison and of its row of the table `speedup`."""
        runs, ranks = compared.newest.runs, row["ranks"]
        reference_ranks = compared.reference.layout.ranks
        cores, reference_cores = row["cores"] or 0, row["reference_cores"] or 0
        alone = {one_process(row[side]) for side in ("strategy", "reference_strategy")}
        over, last = None, (_BOTH,)
        if row["work"] != 1:
            last = (_WEAK,)
        elif len(alone) > 1:
            last = (_ENGINES,)
        # Each rank has as many cores as a rank of the reference.
        elif ranks * reference_cores == reference_ranks * cores:
            over, last = RANKS, (row["variant"],)
            if row["variant"] != row["reference_variant"]:
                over, last = None, (_VARIANTS,)
        elif ranks == reference_ranks:
            over = THREADS
            knobs = runs[0]["knobs"] | {"cores_per_process": None} if runs else None
            last = (row["layout"], row["global_batch"], json.dumps(knobs, sort_keys=True))
        keys = ("dataset", "workload", "strategy", "network", "reference")
        series = (over, *(row[key] for key in keys), *last)
        by_repeat = {}
        if not row["oversubscribed"]:
            values = map(float, ratios(compared.newest))
            by_repeat = {run["repeat"]: ratio for run, ratio in zip(runs, values, strict=True)}
        return cls(series, _times_the_cores(row) or 1.0, by_repeat)


def _law(points: Sequence[_Point]) -> dict:
    """Return the columns of the laws over the points of a series."""
    over, reason = points[0].series[0], points[0].series[-1]
    points = [point for point in points if point.times > 1 and point.ratios]
    times = [point.times for point in points]
    repeats: list[int] = []
    if points:
        repeats = sorted(set.intersection(*(set(point.ratios) for point in points)))
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
