"""Decide how many matches a comparison needs, what it shows, and whether the machine drifted.

Ratios of times are compared as logarithms, so twice and half as long are equally far from 1. The
matches of a session are assumed to be independent: drift of the machine between two matches is not
in their ratios.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from escala.analysis.comparable import Matched
from escala.analysis.statistics import (
    LEVEL,
    MATCHES_FOR_INTERVAL,
    RESAMPLES,
    Interval,
    difference_interval,
)
from escala.record.disturbance import is_disturbed

FASTER, SLOWER, NOT_DISTINGUISHABLE = "faster", "slower", "not distinguishable"
#: Verdicts on scores. `equivalence` returns one of these, `NOT_DISTINGUISHABLE` or `NO_VERDICT`.
SAME, DIFFERENT = "same", "different"
#: There are too few matches, or the end of the interval that decides is unknown.
NO_VERDICT = "no verdict"
#: Fewest measurements of a session with which drift is judged.
MIN_MEASUREMENTS = 6
#: A session with a larger fraction of disturbed matches gets no verdict.
MOST_DISTURBED = 1 / 3


class Verdict(NamedTuple):
    """The result of a comparison.

    Attributes
    ----------
    kind : `FASTER`, `SLOWER`, `NOT_DISTINGUISHABLE` or `NO_VERDICT`.
    detectable : the decrease of the time that a comparison with this interval detects with a
        probability of about 80 %; 0.05 is 5 % of the time. None without a verdict, or if an end is
        unknown.
    """

    kind: str
    detectable: float | None


class Equivalence(NamedTuple):
    """Whether scores are the same within a bound.

    Attributes
    ----------
    kind : `SAME` if all matches are within the bound, `DIFFERENT` if the typical difference is not
        0, `NOT_DISTINGUISHABLE`, or `NO_VERDICT` from too few matches.
    rate : upper limit of the fraction of runs beyond the bound; 0.35 after seven matches that are
        all within the bound.
    """

    kind: str
    rate: float


class Drift(NamedTuple):
    """Change of the times during a session.

    Attributes
    ----------
    change : change of the times from the first to the last measurement; 0.1 is 10 % longer.
    p_value : probability that successive times of a machine without drift are at least as similar.
    """

    change: Interval
    p_value: float

    @property
    def detected(self) -> bool:
        return self.p_value < 1 - LEVEL


def pays(ratio: Interval) -> bool:
    """Return whether a ratio of times pays: its whole interval is below 1.

    This is the only meaning of *to pay*, also for predicted times. For measured times the verdict
    `FASTER` stands for it. This verdict also takes the noise floor into account. How much time is
    saved is another question; where a text says it, the text gives the number.
    """
    return ratio.high is not None and ratio.high < 1


def matches_needed(ratios: Sequence[float], half_width: float, level: float = LEVEL) -> int:
    """Estimate from the paired runs so far how many give an interval of a half width.

    It is the number of the first stage of Stein (A two-sample test for a linear hypothesis whose
    power is independent of the variance, Annals of Mathematical Statistics 16 (1945), 243-258).

    Parameters
    ----------
    ratios : of the matches so far, at least two.
    half_width : of the interval of the logarithm, above 0.
    """
    deviation = float(np.std(np.log(ratios), ddof=1))
    quantile = float(scipy.stats.t.ppf((1 + level) / 2, len(ratios) - 1))
    return max(math.ceil((quantile * deviation / half_width) ** 2), MATCHES_FOR_INTERVAL)


def noise_floor(duplicate_ratio: Interval) -> float:
    """Return the apparent effect when a configuration is compared with itself.

    The effect is computed from the estimate of the ratio, not from the farther end of its interval.
    With this end, verdicts would depend on how many runs of the duplicate happen to be disturbed
    (docs/decisions/intervals.md).

    Parameters
    ----------
    duplicate_ratio : time of the duplicate of a reference divided by that of the reference, over
        matches.

    Returns
    -------
    The distance of the ratio from 1; 0.05 is 5 %.
    """
    return math.expm1(abs(math.log(duplicate_ratio.estimate)))


def simultaneous_level(compared: int, level: float = LEVEL) -> float:
    """Return the level of each interval if the best configuration is compared with several others.

    A verdict only ever says that the best takes *less* time, so only one end of each interval can
    err. Bonferroni's inequality also holds for dependent ratios. By this inequality, a verdict is
    false with a probability of at most 1 - `level`, although the best was selected by its times. A
    single interval has the level `level`.
    """
    return max(level, 1 - 2 * (1 - level) / max(compared, 1))


def verdict(
    ratio: Interval,
    matches: int,
    floor: float | None = None,
    decimals: int | None = None,
    needed: int = MATCHES_FOR_INTERVAL,
) -> Verdict:
    """Judge the ratio of the time of a configuration to that of its reference.

    The configuration is faster or slower if the interval does not contain 1 and the ratio is
    farther from 1 than the noise floor. If the ratio is unknown, the end of its interval that is
    nearer to 1 is used instead. There is no verdict with fewer than `needed` matches, or if an
    unknown end could decide.

    The detectable decrease is 1.5 times half the width of the interval, on the logarithmic scale.
    By simulation, 75 to 87 % of comparisons with seven matches or more detect a decrease of this
    size (docs/decisions/intervals.md). Every second comparison detects a decrease of half the
    width. With a noise floor, the detectable decrease is at least the floor plus a quarter of the
    width.

    Parameters
    ----------
    ratio : the ratio with both ends of its interval; None where unknown.
    matches : number of matches, or of sessions if the interval is over sessions.
    floor : the result of `noise_floor` in the same session; None if it was not measured. Also None
        over sessions: their interval already contains the differences of the machine between
        sessions.
    decimals : number of decimals with which the ends are printed. An end that is printed as 1
        counts as 1.
    needed : the fewest matches with which the interval reaches its level.
    """
    if matches < needed:
        return Verdict(NO_VERDICT, None)
    estimate, low, high = (math.nan if end is None else end for end in ratio)
    printed = [end if decimals is None else round(end, decimals) for end in (low, high)]
    if printed[1] < 1:
        kind, nearest = FASTER, high
    elif printed[0] > 1:
        kind, nearest = SLOWER, low
    elif math.isnan(low) or math.isnan(high):
        return Verdict(NO_VERDICT, None)
    else:
        kind, nearest = NOT_DISTINGUISHABLE, 1.0
    limit = 1 + (floor or 0.0)
    if 1 / limit <= (nearest if math.isnan(estimate) else estimate) <= limit:
        kind = NOT_DISTINGUISHABLE
    if math.isnan(low) or math.isnan(high) or not low:
        return Verdict(kind, None)
    half = math.log(high / low) / 2
    return Verdict(kind, -math.expm1(-max(1.5 * half, math.log(limit) + 0.5 * half)))


def equivalence(differences: Sequence[float], bound: float, level: float = LEVEL) -> Equivalence:
    """Judge whether the scores of a configuration are those of its reference, within a bound.

    No distribution is assumed. If one run in ten fails, seven runs may have equal scores, and no
    interval of their mean shows the failures. The rate is the upper end of the one-sided interval
    of Clopper and Pearson (Biometrika 26 (1934), 404-413). This end is 1 - (1 - `level`)**(1/n) if
    all n differences are within the bound. The typical difference is the estimate of
    `difference_interval`.

    Parameters
    ----------
    differences : difference of the scores of each match, finite, and independent of each other.
    bound : the largest difference of scores that count as the same, in the unit of the scores; 0 if
        they must be equal.
    """
    values = np.asarray(differences, float)
    # 0.98 - 0.96 is within 0.02, in spite of rounding.
    beyond = int((np.abs(values) > bound + 1e-9).sum())
    within = len(values) - beyond
    rate = float(scipy.stats.beta.ppf(level, beyond + 1, within)) if within else 1.0
    if len(values) < MATCHES_FOR_INTERVAL:
        return Equivalence(NO_VERDICT, rate)
    if not beyond:
        return Equivalence(SAME, rate)
    _, low, high = difference_interval(values, level)
    return Equivalence(NOT_DISTINGUISHABLE if low <= 0 <= high else DIFFERENT, rate)


def drift(
    moments: Mapping[str, Sequence[float]], seconds: Mapping[str, Sequence[float]]
) -> Drift | None:
    """Return how the times of a session changed, over all configurations together.

    Each time is divided by the median of its configuration. The change is the slope of Theil and
    Sen. Von Neumann's ratio of ranks tests whether the machine drifted, even if it went back to its
    first speed. If the machine drifts, squared differences of successive measurements are small (R.
    Bartels, The rank version of von Neumann's ratio test for randomness, Journal of the American
    Statistical Association 77 (1982), 40-46). The p-value is from permutations.

    Parameters
    ----------
    moments, seconds : by name of a configuration, when each of its measurements began, and how long
        the measurement took.

    Returns
    -------
    None for fewer than `MIN_MEASUREMENTS` measurements, or if all began at the same moment.
    """
    if sum(map(len, seconds.values())) < MIN_MEASUREMENTS:
        return None
    when = np.concatenate([np.asarray(moments[name], float) for name in seconds])
    logs = [np.log(times) for times in seconds.values()]
    order = np.argsort(when, kind="stable")
    when = when[order]
    relative = np.concatenate([times - np.median(times) for times in logs])[order]
    if when[0] == when[-1]:
        return None
    fit = scipy.stats.theilslopes(relative, when, LEVEL)
    slopes = np.array([fit.slope, fit.low_slope, fit.high_slope])
    change = Interval(*map(float, np.expm1(slopes * (when[-1] - when[0]))))
    random = np.random.default_rng(0)
    ranks = scipy.stats.rankdata(relative)
    permuted = random.permuted(np.tile(ranks, (RESAMPLES, 1)), axis=1)
    squares, permuted_squares = (
        np.square(np.diff(order)).sum(axis=-1) for order in (ranks, permuted)
    )
    as_similar = int((permuted_squares <= squares).sum())
    return Drift(change, (as_similar + 1) / (RESAMPLES + 1))


class Quiet(NamedTuple):
    """The matches that a comparison uses, without disturbed matches.

    Attributes
    ----------
    matches : the matches whose runs were not disturbed; all matches if `stays_disturbed`.
    disturbed : number of matches whose newest measurement is still disturbed.
    stays_disturbed : whether these are too many for a verdict.
    """

    matches: Matched
    disturbed: int
    stays_disturbed: bool


def leave_out_disturbed(matches: Matched, fewest: int = MATCHES_FOR_INTERVAL) -> Quiet:
    """Leave out the matches that stayed disturbed, and decide whether the rest may be judged.

    The time of a run does not decide whether the run is disturbed, and the same rule holds for
    every configuration. So no times are selected. Disturbed matches prevent a verdict if fewer than
    `fewest` others are left, or if they are more than `MOST_DISTURBED` of all. If none is
    disturbed, the caller refuses too few matches. A match with unknown disturbance is kept.

    Parameters
    ----------
    matches : one match of each repeat.

    Notes
    -----
    `benchmarks/interval_methods.py` simulates two equal configurations. In 30 or 60 % of the
    matches, other work slows one configuration more than its counterpart. If all matches are kept,
    11 to 95 % of the verdicts are false. If disturbed matches are left out, 2 to 3 % are false, but
    up to 16 % if only half of the disturbed matches are detected. With the limit `MOST_DISTURBED`,
    at most 4 % are false.
    """
    quiet = [pair for pair in matches.pairs if not any(map(is_disturbed, pair))]
    disturbed = len(matches.runs) - len(quiet)
    too_many = disturbed > MOST_DISTURBED * len(matches.runs) or len(quiet) < fewest
    if disturbed and too_many:
        return Quiet(matches, disturbed, True)
    kept = Matched([run for run, _ in quiet], [run for _, run in quiet], matches.refused)
    return Quiet(kept, disturbed, False)


class Ratio(NamedTuple):
    """A quotient of times with its interval, or with the range of its values; NaN where unknown.

    Attributes
    ----------
    matches : number of paired runs behind the quotient.
    """

    value: float
    low: float
    high: float
    matches: int
