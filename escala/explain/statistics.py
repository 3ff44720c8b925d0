"""Intervals of medians, ratios between paired runs, and pooled precision and recall."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95
RESAMPLES = 9999
#: What two runs share when they differ in the configuration alone.
PAIR = ("dataset", "workload", "variant", "session", "repeat")


class Interval(NamedTuple):
    """An estimate and its interval; `None` where there is not enough data for it."""

    estimate: float | None
    low: float | None
    high: float | None

    def columns(self, name: str, unit: str = "") -> dict[str, float | None]:
        """Return it as columns of a table: `name`, `name_low` and `name_high`, and the unit."""
        return {
            f"{name}{unit}": self.estimate,
            f"{name}_low{unit}": self.low,
            f"{name}_high{unit}": self.high,
        }


class Rates(NamedTuple):
    """Precision and recall of one class, and the counts of test rows they rest on."""

    precision: Interval
    recall: Interval
    true_positives: float
    predicted: float
    actual: float


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable = np.median,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """Return a statistic of some values with its percentile bootstrap interval.

    The percentile method is used because the accelerated ones are undefined for the median of a
    few, often equal, values (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
    chapter 13). With few values it is narrower than it should be: with three, it spans them.

    Parameters
    ----------
    values : finite numbers; of a single one there is no interval, of none no estimate.
    statistic : maps an array and `axis` to the statistic along that axis.
    seed : of the resampling; the same values give the same interval.
    """
    values = np.asarray(values, dtype=float)
    if not len(values):
        return Interval(None, None, None)
    return _bootstrapped([values], statistic, level, seed)


def combined_interval(
    samples: Sequence[Sequence[float]],
    combine: Callable,
    level: float = LEVEL,
    seed: int = 0,
) -> Interval:
    """Return what the medians of several samples combine to, with its bootstrap interval.

    The samples are independent of each other: each is resampled by itself.

    Parameters
    ----------
    samples : finite numbers; if a sample has a single one there is no interval, if one has none no
        estimate.
    combine : maps a list of arrays and `axis`, which is 0, to one array, as `np.prod` does.
    """
    samples = [np.asarray(sample, dtype=float) for sample in samples]
    if not min(map(len, samples), default=0):
        return Interval(None, None, None)

    def statistic(*drawn, axis):
        return combine([np.median(sample, axis=axis) for sample in drawn], axis=0)

    return _bootstrapped(samples, statistic, level, seed)


def _bootstrapped(
    samples: Sequence[np.ndarray], statistic: Callable, level: float, seed: int
) -> Interval:
    estimate = float(statistic(*samples, axis=0))
    if min(map(len, samples)) == 1:
        return Interval(estimate, None, None)
    found = stats.bootstrap(
        samples,
        statistic,
        n_resamples=RESAMPLES,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(estimate, float(found.low), float(found.high))


def paired_ratios(
    runs: pd.DataFrame, value: str, baseline: tuple[str, str] = ("single", "1x1")
) -> pd.DataFrame:
    """Divide every run's value by that of the baseline of the same session and repeat.

    Machines drift, so runs of different sessions are never compared.

    Parameters
    ----------
    runs : the columns of `PAIR`, `strategy`, `layout` and `value`; rows without value are left
        out.
    baseline : strategy and layout.

    Returns
    -------
    The rows of `runs`, other than the baseline's, that have a partner, with the column `ratio`:
    below 1 the configuration needs less than the baseline.
    """
    runs = runs.dropna(subset=[value])
    is_baseline = (runs["strategy"] == baseline[0]) & (runs["layout"] == baseline[1])
    reference = runs.loc[is_baseline, [*PAIR, value]].rename(columns={value: "_baseline"})
    pairs = runs[~is_baseline].merge(reference, on=list(PAIR), validate="many_to_one")
    return pairs.assign(ratio=pairs[value] / pairs["_baseline"]).drop(columns="_baseline")


def ratio_interval(ratios: Sequence[float], level: float = LEVEL, seed: int = 0) -> Interval:
    """Return the median of paired ratios with its bootstrap interval."""
    return bootstrap_interval(ratios, np.median, level, seed)


def rate_interval(successes: float, trials: float, level: float = LEVEL) -> Interval:
    """Return a proportion with its Wilson score interval; of no trials there is none."""
    if round(trials) < 1:
        return Interval(None, None, None)
    found = stats.binomtest(round(successes), round(trials)).proportion_ci(level, method="wilson")
    return Interval(successes / trials, float(found.low), float(found.high))


def pooled_rates(
    matrices: Iterable[np.ndarray], splits: Iterable[int], level: float = LEVEL
) -> list[Rates]:
    """Return precision and recall of every class, pooled over runs.

    Runs of one split test the same rows: their matrices are averaged, so that a split counts
    once, and then the splits are added up. Different splits still share genomes, and genomes of
    one outbreak resemble each other: rows are not independent, so the intervals are approximate
    and rather too narrow.

    Parameters
    ----------
    matrices : confusion matrices of shape (classes, classes), true classes in rows, one per run.
    splits : the seed of each run's split.
    """
    by_split: dict[int, list[np.ndarray]] = {}
    for matrix, split in zip(matrices, splits, strict=True):
        by_split.setdefault(split, []).append(np.asarray(matrix))
    pooled = sum(np.mean(group, axis=0) for group in by_split.values())
    counts = zip(np.diag(pooled), pooled.sum(axis=0), pooled.sum(axis=1), strict=True)
    return [
        Rates(
            rate_interval(right, predicted, level),
            rate_interval(right, actual, level),
            float(right),
            float(predicted),
            float(actual),
        )
        for right, predicted, actual in counts
    ]
