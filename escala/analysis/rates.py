"""Rates of classes: precision and recall, pooled or compared, and whether a network learns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy

from escala.analysis import statistics
from escala.analysis.comparable import CONFIGURATION
from escala.analysis.statistics import LEVEL, Interval

LEARNS, DOES_NOT_LEARN, UNKNOWN = "learns", "does not learn", "unknown"


class Rates(NamedTuple):
    """Precision and recall of one class, and the numbers of test rows behind them."""

    precision: Interval
    recall: Interval
    true_positives: float
    predicted: float
    actual: float


class Differences(NamedTuple):
    """The differences of the precision and of the recall of one class."""

    precision: Interval
    recall: Interval


def rate_interval(successes: float, trials: float) -> Interval:
    """Return a proportion with its Wilson score interval; all None without trials."""
    if round(trials) < 1:
        return Interval(None, None, None)
    test = scipy.stats.binomtest(round(successes), round(trials))
    return Interval(successes / trials, *map(float, test.proportion_ci(LEVEL, method="wilson")))


def pool_rates(matrices: Iterable[np.ndarray], splits: Iterable[int]) -> list[Rates]:
    """Return precision and recall of every class, pooled over runs.

    Runs of one split test the same rows. So the matrices of a split are averaged, and then the
    splits are added up. Different splits share genomes, and genomes of one outbreak resemble each
    other. So rows are not independent. The intervals are approximate, and rather too narrow.

    Parameters
    ----------
    matrices : confusion matrices of shape (classes, classes), true classes in rows, one per run.
    splits : the seed of each run's split.
    """
    by_split: dict[int, list[np.ndarray]] = {}
    for matrix, split in zip(matrices, splits, strict=True):
        by_split.setdefault(split, []).append(np.asarray(matrix))
    pooled = sum(np.mean(group, axis=0) for group in by_split.values())
    counts = np.stack([np.diag(pooled), pooled.sum(axis=0), pooled.sum(axis=1)], axis=1).tolist()
    return [
        Rates(
            rate_interval(correct, predicted),
            rate_interval(correct, actual),
            correct,
            predicted,
            actual,
        )
        for correct, predicted, actual in counts
    ]


def rate_differences(
    labels: np.ndarray,
    baseline: np.ndarray,
    other: np.ndarray,
    clusters: np.ndarray,
    classes: int,
    level: float = LEVEL,
    seed: int = 0,
) -> list[Differences]:
    """Return the differences of precision and recall between two predictions of each row.

    The intervals are of a cluster bootstrap: clusters are drawn with replacement, and a cluster
    keeps all its rows with both predictions. A difficult row is difficult for both models, and rows
    of one genome are not independent. The models themselves are not resampled. If the two models
    predict the same for every row, the interval has zero width; with few rows, such an interval is
    weak evidence.

    Parameters
    ----------
    labels, baseline, other : the true class of each row and both predicted classes, int arrays of
        shape (rows,).
    clusters : the cluster of each row, int array of shape (rows,).
    classes : the number of classes.
    seed : seed of the resampling; the same rows give the same intervals.

    Returns
    -------
    The rates of `other` minus those of `baseline`, one entry per class. Both are None for a class
    without rows. The precision is None if one of the two models never predicts the class. A single
    cluster gives no interval.
    """
    # Rows with a 1 at the class, each of shape (rows, classes).
    truth, baseline_class, other_class = np.eye(classes)[np.stack([labels, baseline, other])]
    counts = np.stack(
        [truth, baseline_class, baseline_class * truth, other_class, other_class * truth], axis=1
    )
    cluster_names, cluster_of_row = np.unique(clusters, return_inverse=True)
    number = len(cluster_names)
    cluster_counts = np.zeros((number, *counts.shape[1:]))
    np.add.at(cluster_counts, cluster_of_row, counts)
    # Clusters with equal counts are of one kind. A resample draws the number of clusters of each
    # kind.
    kinds, kind_sizes = np.unique(cluster_counts, axis=0, return_counts=True)
    resamples = statistics.RESAMPLES if number > 1 else 0
    random = np.random.default_rng(seed)
    drawn_sizes = random.multinomial(number, kind_sizes / number, resamples)
    estimates = _differences(kind_sizes[None], kinds)[0]
    resampled = _differences(drawn_sizes, kinds)
    differences = []
    for label in range(classes):
        rates = []
        for estimate, draws in zip(estimates[:, label], resampled[:, :, label].T, strict=True):
            draws = draws[~np.isnan(draws)]
            low = high = None
            if len(draws) and not np.isnan(estimate):
                low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2]).tolist()
            rates.append(Interval(None if np.isnan(estimate) else float(estimate), low, high))
        differences.append(Differences(*rates))
    return differences


def _differences(kind_sizes: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    """Return the differences of `rate_differences`, of shape (draws, 2, classes), NaN for None.

    Parameters
    ----------
    kind_sizes : number of clusters of each kind in a draw, of shape (draws, kinds).
    kinds : counts of a cluster of each kind, of shape (kinds, 5, classes): rows of each class; rows
        that the baseline predicts as the class, and how many of these are correct; both numbers for
        the other model.
    """
    sums = np.tensordot(kind_sizes, kinds, 1)
    actual, predicted, correct, other_predicted, other_correct = np.moveaxis(sums, 1, 0)
    with np.errstate(invalid="ignore"):
        recall = (other_correct - correct) / actual
        precision = other_correct / other_predicted - correct / predicted
    return np.stack([np.where(actual, precision, np.nan), recall], axis=1)


class Learning(NamedTuple):
    """The accuracy of a configuration, and the accuracies to compare it with; None is unknown.

    Attributes
    ----------
    kind : `LEARNS` if the interval of the accuracy is above `largest_class`, else `DOES_NOT_LEARN`;
        `UNKNOWN` without classes, without an accuracy of whole epochs, and for a program. A program
        may report the accuracy of any data.
    accuracy, low, high : the median over runs, with Wilson's 95 % interval over the test rows.
    largest_class : the fraction of the test rows that are of the largest class.
    baseline, baseline_workload : the best accuracy of a workload of the dataset that is fitted at
        once, and its name.
    """

    kind: str
    accuracy: float | None = None
    low: float | None = None
    high: float | None = None
    largest_class: float | None = None
    baseline: float | None = None
    baseline_workload: str | None = None


def judge_learning(tables: Mapping[str, pd.DataFrame], names: tuple) -> Learning:
    """Compare the accuracy of a configuration with the largest class and with fitted workloads.

    Parameters
    ----------
    names : the values of `CONFIGURATION`.
    """

    def is_named(table: pd.DataFrame) -> list[bool]:
        rows = table[list(CONFIGURATION)].itertuples(index=False, name=None)
        return [row == names for row in rows]

    configurations, pooled = tables["configurations"], tables["pooled"]
    row = configurations.loc[is_named(configurations)].dropna(subset=["accuracy"])
    rows = pooled.loc[is_named(pooled), "actual"]
    if row.empty or not rows.sum():
        return Learning(UNKNOWN)
    interval = rate_interval(row["accuracy"].iloc[0] * rows.sum(), rows.sum())
    largest = float(rows.max() / rows.sum())
    is_fit = configurations["fit"] & (configurations["dataset"] == names[0])
    fits = configurations[is_fit].dropna(subset=["accuracy"]).sort_values("accuracy")
    best = fits[["accuracy", "workload"]].iloc[-1] if len(fits) else (None, None)
    return Learning(LEARNS if interval.low > largest else DOES_NOT_LEARN, *interval, largest, *best)
