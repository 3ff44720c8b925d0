"""Compute intervals of medians, means and ratios.

There is one interval for ratios of paired runs (*matches*): `ratio_interval`, by signed ranks of
logarithms, or by Student where these need more values. It was selected by a benchmark
(`benchmarks/interval_methods.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy

#: Probability with which an interval covers, if no other is given.
LEVEL = 0.95
RESAMPLES = 9999
#: Fewest matches for an interval of their ratio, and the least level of Student's interval, which
#: stands where signed ranks would need more matches (docs/decisions/intervals.md).
MATCHES_FOR_INTERVAL, FEW_LEVEL = 5, 0.995
#: Fewest sessions for an interval over sessions.
SESSIONS_FOR_INTERVAL = 3
#: Standard deviation of the logarithm of a ratio between sessions of one experiment, and the number
#: of sessions from which it was computed (docs/decisions/measured.md).
SESSION_DEVIATION, SESSIONS_OF_DEVIATION = 0.05, 12
#: Number of resamples that are in memory at the same time.
_BATCH = 1000


class Interval(NamedTuple):
    """An estimate and its interval; `None` if there are not enough data."""

    estimate: float | None
    low: float | None
    high: float | None

    def columns(self, name: str, unit: str = "") -> dict[str, float | None]:
        """Return columns of a table: `name`, `name_low`, `name_high`, each with the unit."""
        return {
            f"{name}{unit}": self.estimate,
            f"{name}_low{unit}": self.low,
            f"{name}_high{unit}": self.high,
        }


def inverse(ratio: Interval) -> Interval:
    """Return 1 divided by a ratio, with its interval; None where the ratio is 0 or unknown."""
    return Interval(*(1 / end if end else None for end in (ratio.estimate, ratio.high, ratio.low)))


def combine_intervals(
    samples: Sequence[Sequence[float]], combine: Callable, centre: Callable = np.median
) -> Interval:
    """Return a combination of the centres of several samples, with its bootstrap interval.

    The samples are independent of each other: each is resampled separately. The percentile method
    is used, because the accelerated methods are undefined for the median of a few, often equal,
    values (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13).

    Parameters
    ----------
    samples : finite numbers. If a sample has a single number, there is no interval. If a sample is
        empty, there is no estimate.
    combine : maps a list of arrays and `axis`, which is 0, to one array, like `np.prod`.
    centre : maps a sample and `axis` to its centre, like `np.median` or `pseudo_median`.
    """
    samples = [np.asarray(sample, dtype=float) for sample in samples]
    fewest = min(map(len, samples), default=0)
    if not fewest:
        return Interval(None, None, None)

    def statistic(*drawn, axis):
        return combine([centre(sample, axis=axis) for sample in drawn], axis=0)

    estimate = float(statistic(*samples, axis=0))
    if fewest == 1:
        return Interval(estimate, None, None)
    ends = scipy.stats.bootstrap(
        samples,
        statistic,
        n_resamples=RESAMPLES,
        batch=_BATCH,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Interval(estimate, float(ends.low), float(ends.high))


def median_interval(
    values: Sequence[float], at_most: Sequence[float] | None = None, level: float = LEVEL
) -> Interval:
    """Return the median of some values with its interval, by order statistics.

    The interval covers the median of the distribution with a probability of at least `level`,
    whatever the distribution. For fewer than six values, the interval is their range, with a lower
    probability. The percentile bootstrap is not used: with seven values it excludes the smallest
    and the largest value, and so covers with a probability of 0.88 only.

    Parameters
    ----------
    values : finite numbers. One value has no interval. No values have no estimate. With `at_most`,
        the lower bound of each value: positive, or 0 if unknown.
    at_most : the upper bound of each value, infinity if unknown; None if the values are exact.

    Returns
    -------
    The estimate and the ends; `None` for a number that the bounds do not determine.
    """
    lower = np.sort(np.asarray(values, dtype=float))
    upper = lower if at_most is None else np.sort(np.asarray(at_most, dtype=float))
    if not len(lower):
        return Interval(None, None, None)
    least, most = float(np.median(lower)), float(np.median(upper))
    median = least if least == most else None
    if len(lower) == 1:
        return Interval(median, None, None)
    # The number of values below the interval. The same number of values is above it.
    outside = max(int(scipy.stats.binom.ppf((1 - level) / 2, len(lower), 0.5)) - 1, 0)
    low, high = float(lower[outside]), float(upper[-1 - outside])
    is_open = at_most is not None and low == 0
    return Interval(median, None if is_open else low, high if np.isfinite(high) else None)


def ratio_interval(
    ratios: Sequence[float], at_most: Sequence[float] | None = None, level: float = LEVEL
) -> Interval:
    """Return the typical ratio of some matches with its interval, as `difference_interval` does.

    If only bounds of some ratios are known, `median_interval` is used instead: order statistics do
    not need exact values. Bounds that are enough for a verdict, and whose range covers less than
    `level`, have no interval.

    Parameters
    ----------
    ratios : positive numbers. With `at_most`, the lower bound of each ratio: positive, or 0 if
        unknown.
    at_most : the upper bound of each ratio, infinity if unknown; None if the ratios are exact.
    """
    if at_most is not None and not np.array_equal(ratios, at_most):
        median = median_interval(ratios, at_most, level)
        reaches_level = _place_of_low_end(len(ratios), level) > 0
        if len(ratios) < MATCHES_FOR_INTERVAL or reaches_level:
            return median
        return Interval(median.estimate, None, None)
    return _exponential(difference_interval(np.log(np.asarray(ratios, float)), level))


def difference_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the typical difference with its interval, by signed ranks or by Student.

    The estimate is the one of Hodges and Lehmann (Annals of Mathematical Statistics 34 (1963),
    598-611): the median of the means of every two values and of each value with itself. The ends
    are two of these means, such that Wilcoxon's exact test of signed ranks rejects no value between
    them (Hollander and Wolfe, Nonparametric Statistical Methods, 2nd edition, 1999, section 3.3).
    SciPy has the test, but not this interval. The interval covers with a probability of at least
    `level` if the distribution is symmetric. The difference of two equal runs has a symmetric
    distribution, whatever disturbs them. With too few values for signed ranks, the interval is
    Student's, at `FEW_LEVEL` at least: it contains the estimate. With fewer than
    `MATCHES_FOR_INTERVAL`, it is their range.

    Parameters
    ----------
    values : finite numbers. One value has no interval. No values have no estimate.
    """
    if not len(values):
        return Interval(None, None, None)
    estimate, low, high = map(float, rank_interval(np.asarray(values, float), level))
    return Interval(estimate, low, high) if len(values) > 1 else Interval(estimate, None, None)


def _exponential(interval: Interval) -> Interval:
    return Interval(*(None if end is None else math.exp(end) for end in interval))


def rank_interval(values: np.ndarray, level: float = LEVEL) -> tuple:
    """Return estimate, low and high end of `difference_interval`, each along the last axis."""
    number = values.shape[-1]
    ordered, place = np.sort(_walsh_means(values), axis=-1), _place_of_low_end(number, level)
    estimate = np.median(ordered, axis=-1)
    if not place and number >= MATCHES_FOR_INTERVAL:
        mean, quantile = values.mean(axis=-1), (1 + max(level, FEW_LEVEL)) / 2
        half = scipy.stats.t.ppf(quantile, number - 1) * scipy.stats.sem(values, axis=-1)
        return estimate, mean - half, mean + half
    place = max(place, 1)
    return estimate, ordered[..., place - 1], ordered[..., -place]


def pseudo_median(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the estimate of Hodges and Lehmann along an axis."""
    return np.median(_walsh_means(np.moveaxis(values, axis, -1)), axis=-1)


def geometric_pseudo_median(ratios: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the estimate of `ratio_interval` along an axis."""
    return np.exp(pseudo_median(np.log(ratios), axis))


def _walsh_means(values: np.ndarray) -> np.ndarray:
    """Return the means of every two values and of each with itself, along the last axis."""
    one, other = np.triu_indices(values.shape[-1])
    return (values[..., one] + values[..., other]) / 2


@cache
def _place_of_low_end(number: int, level: float) -> int:
    """Return the place, from 1 in increasing order, of the Walsh mean that is the lower end.

    The place is the largest k with P(W < k) <= (1 - `level`) / 2. W is Wilcoxon's signed-rank
    statistic of `number` values. The place is 0 if even the range of the values does not reach the
    level.
    """
    # The distribution of W: each rank is in the sum with probability 1/2.
    chance = np.ones(1)
    for rank in range(1, number + 1):
        chance = (np.pad(chance, (0, rank)) + np.pad(chance, (rank, 0))) / 2
    return int(np.searchsorted(np.cumsum(chance), (1 - level) / 2 * (1 + 1e-9), side="right"))


def sessions_interval(ratios: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the typical ratio over sessions with its interval: Student's, of their logarithms.

    Each session gives one value, its ratio, so the interval contains the differences between
    sessions. The interval is also valid for sessions of unequal precision: at levels of 92 % and
    more, unequal variances do not make Student's test err more often (R. Ibragimov and U. K.
    Müller, t-statistic based correlation and heterogeneity robust inference, Journal of Business &
    Economic Statistics 28 (2010), 453-468).

    Parameters
    ----------
    ratios : the estimate of each session, at least `SESSIONS_FOR_INTERVAL`.
    """
    return _exponential(mean_interval(np.log(ratios), level))


def deviation_of_sessions(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Return the standard deviation of log ratios between sessions, and its degrees of freedom.

    `SESSION_DEVIATION` is pooled with the deviations of the groups, by degrees of freedom. The
    result includes the noise within sessions.

    Parameters
    ----------
    groups : a group for each comparison, with the ratio of each session. A group of one session
        adds nothing.
    """
    degrees = SESSIONS_OF_DEVIATION - 1
    squares = degrees * SESSION_DEVIATION**2
    for ratios in groups:
        logs = np.log(ratios)
        squares += float(np.square(logs - logs.mean()).sum()) if len(logs) else 0.0
        degrees += max(len(logs) - 1, 0)
    return math.sqrt(squares / degrees), degrees


def session_half_width(deviation: float, degrees: int, level: float = LEVEL) -> float:
    """Return half the width of an interval of log ratios that is due to how sessions differ.

    Parameters
    ----------
    deviation, degrees : the result of `deviation_of_sessions`.
    """
    return float(scipy.stats.t.ppf((1 + level) / 2, degrees)) * deviation


def next_time_interval(
    ratio: Interval, deviation: float, degrees: int, level: float = LEVEL
) -> Interval:
    """Return a ratio of one session with an interval for the ratio in another session.

    The half width on the logarithmic scale is the root of the sum of two squares, because two
    errors are independent. One is the half width of the session's interval. The other is Student's
    half width for the differences between sessions.

    Parameters
    ----------
    ratio : the ratio with the interval of its session, at `level`.
    deviation, degrees : the result of `deviation_of_sessions`.
    """
    half_width = session_half_width(deviation, degrees, level)

    def move(end: float | None, side: int) -> float | None:
        if not end:
            return end
        # If only bounds of the ratio are known, each bound is moved by itself.
        start = end if ratio.estimate is None else ratio.estimate
        return start * math.exp(side * math.hypot(math.log(start / end), half_width))

    return Interval(ratio.estimate, move(ratio.low, -1), move(ratio.high, 1))


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the mean of some values with Student's interval.

    Parameters
    ----------
    values : finite numbers, independent of each other. A single value has no interval. Equal values
        have no interval either, because they do not show how values differ. Without values there is
        no estimate.
    """
    if not len(values):
        return Interval(None, None, None)
    mean = float(np.mean(values))
    # Equal values may differ in the last bit, such as 0.98 - 0.96 and 0.97 - 0.95.
    if np.ptp(values) <= 1e-12:
        return Interval(mean, None, None)
    half = float(scipy.stats.t.ppf((1 + level) / 2, len(values) - 1) * scipy.stats.sem(values))
    return Interval(mean, mean - half, mean + half)
