"""Resample the repeats of a calibration.

The repeats of a measurement are drawn with replacement. A repeat of a collective contains all its
sizes, because the speed of a machine changes from repeat to repeat. We bootstrap logarithms of
times, with Student's widening for few repeats (T. C. Hesterberg, What teachers should know about
the bootstrap, The American Statistician 69 (2015), 371-386: expanded percentile intervals). Steps
with different numbers of rows are assumed to have the same relative spread, so their deviations are
pooled.

The predicted run is treated as one more repeat, and deviates like a repeat. For collectives, the
deviation of a repeat is the mean over all operations and sizes of a library: a run makes many
calls, so differences between single calls average out. The run also takes place at another time
than the calibration, so its steps are multiplied by a value that is drawn from the calibrated
drift. For measurements in rounds of blocks we use the median of the resample, because some blocks
are disturbed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache

import numpy as np
from scipy import stats

from escala.analysis.cost_model.calibration import (
    LEVEL,
    Calibration,
    CollectiveTimes,
    Overheads,
    WorkTimes,
)


def resample_calibration(calibration: Calibration, random: np.random.Generator) -> Calibration:
    """Return a calibration in which a resample replaces the repeats of each measurement.

    Collectives are drawn last. So two calibrations that differ only in collectives have the same
    draws of all other measurements.
    """
    bytes_per_second = mean_of_drawn(calibration.bytes_per_second, random)
    operations_per_second = mean_of_drawn(calibration.operations_per_second, random)
    works = {
        name: _resample_work(work, calibration.drift, random)
        for name, work in calibration.works.items()
    }
    starts = tuple(
        replace(start, seconds=random.choice(start.seconds, 1)) for start in calibration.starts
    )
    run_deviations = {}
    for key, seconds in _repeats(calibration.collectives).items():
        # The mean deviation of each repeat.
        logarithms = np.log(seconds)
        deviations = (logarithms - logarithms.mean(axis=1, keepdims=True)).mean(axis=0)
        deviations *= _student_factor(seconds.shape[1])
        run_deviations[key] = float(np.exp(random.choice(deviations)))
    collectives = tuple(
        replace(
            times,
            seconds=mean_of_drawn(times.seconds, random),
            deviation=run_deviations[times.measured_with],
        )
        for times in calibration.collectives
    )
    return replace(
        calibration,
        bytes_per_second=bytes_per_second,
        operations_per_second=operations_per_second,
        works=works,
        starts=starts,
        collectives=collectives,
    )


def without_deviations(calibration: Calibration) -> Calibration:
    """Return a resampled calibration without the deviations of the predicted run."""
    return replace(
        calibration,
        works={name: replace(work, deviation=1.0) for name, work in calibration.works.items()},
        collectives=tuple(replace(times, deviation=1.0) for times in calibration.collectives),
    )


def _resample_work(work: WorkTimes, drift: np.ndarray, random: np.random.Generator) -> WorkTimes:
    # Deviations of log times from the mean for their number of rows.
    logarithms = [np.log(times.means) for times in work.steps]
    deviations = np.concatenate([logs - logs.mean() for logs in logarithms])
    deviations *= _student_factor(len(deviations), len(work.steps))
    # A mean is over drawn repeats. Their number is that of the measured repeats.
    means = [logs.mean() + random.choice(deviations, logs.shape).mean() for logs in logarithms]
    steps = tuple(
        replace(times, means=np.exp([mean])) for times, mean in zip(work.steps, means, strict=True)
    )
    contention = tuple(
        replace(rounds, ratios=_median(rounds.ratios, random)) for rounds in work.contention
    )
    exchanges = tuple(
        replace(rounds, seconds=_median(rounds.seconds, random)) for rounds in work.exchanges
    )
    update = None if work.update is None else mean_of_drawn(work.update, random)
    overheads = work.overheads and Overheads(
        *(mean_of_drawn(getattr(work.overheads, field.name), random) for field in fields(Overheads))
    )
    deviation = float(np.exp(random.choice(deviations)))
    # A single value of the drift may be an outlier, so the drift is not used then.
    if len(drift) > 1:
        deviation *= float(random.choice(drift))
    return WorkTimes(work.gradients, steps, contention, exchanges, update, overheads, deviation)


def mean_of_drawn(seconds: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the means of drawn repeats, of shape (…, 1) for `seconds` of shape (…, repeats).

    A repeat may be a single call, and some calls take many times as long as other calls. A run
    makes many calls, so we use the arithmetic mean.
    """
    repeats = seconds.shape[-1]
    means = seconds.mean(axis=-1, keepdims=True)
    drawn = seconds[..., random.integers(repeats, size=repeats)].mean(axis=-1, keepdims=True)
    return means * (drawn / means) ** _student_factor(repeats)


def _repeats(collectives: Sequence[CollectiveTimes]) -> dict[tuple, np.ndarray]:
    """Return the seconds of all operations, of shape (measurements, repeats), by `measured_with`.

    If operations have different numbers of repeats, only the first repeats of each are used, up to
    the smallest number.
    """
    seconds: dict[tuple, list[np.ndarray]] = {}
    for times in collectives:
        seconds.setdefault(times.measured_with, []).append(times.seconds)
    joined = {}
    for measured_with, arrays in seconds.items():
        fewest = min(array.shape[1] for array in arrays)
        joined[measured_with] = np.concatenate([array[:, :fewest] for array in arrays])
    return joined


@cache
def _student_factor(repeats: int, means: int = 1) -> float:
    """Return the factor by which Student's interval is wider than the percentile bootstrap's.

    Parameters
    ----------
    repeats : number of deviations.
    means : number of means from which the repeats deviate.
    """
    upper, freedom = (1 + LEVEL) / 2, repeats - means
    student = stats.t.ppf(upper, freedom) / stats.norm.ppf(upper)
    return float(student * np.sqrt(repeats / freedom))


def _median(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the median of a resample, of shape (1,); empty if there are no values."""
    if not len(values):
        return values
    return np.median(random.choice(values, values.shape))[None]
