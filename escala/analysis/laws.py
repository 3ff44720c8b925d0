"""Efficiencies of parallel trainings, and the laws that are fitted to measured ratios of times.

Amdahl's law and the universal scalability law give the time of n processes, divided by that of one:

| law | T(n) / T(1) |
|---|---|
| Amdahl | (1 + s (n − 1)) / n |
| universal scalability | (1 + α (n − 1) + β n (n − 1)) / n |

s and α are the fraction of the work that is not divided. β is the cost of each pair of processes,
such as in an exchange of all with all. With β above 0, one number of processes is the fastest. (G.
M. Amdahl, Validity of the single processor approach to achieving large scale computing
capabilities, AFIPS Conference Proceedings 30 (1967), 483-485; N. J. Gunther, Guerrilla Capacity
Planning, Springer 2007, chapters 4 to 6.)

The laws are linear in s, α and β, so they are fitted by least squares, with parameters of at least
0. A law does not contain effects that appear only with more processes, such as another node or a
full memory. Any law goes through a single point, so at least `LEAST_POINTS` points are fitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from escala.analysis.statistics import LEVEL, Interval

#: Fewest repeats for an interval, and the number of draws for it.
REPEATS_FOR_INTERVAL, DRAWS = 3, 2000
#: Fewest numbers of processes above 1 to which the laws are fitted: the second law has two
#: parameters.
LEAST_POINTS = 2


def efficiency_of_doubling(speedup: float | None, times: float) -> float | None:
    """Return the efficiency of each doubling of the cores, for `times` as many cores.

    Each of log2(times) doublings makes the work speedup^(1 / log2 times) times as fast, and its
    efficiency is half of this factor. The efficiency is None without a speed-up, or if `times` is
    at most 1.
    """
    if not speedup or times <= 1:
        return None
    return speedup ** (1 / math.log2(times)) / 2


def efficiencies(
    useful: Sequence[float], transfer: Sequence[float], whole: float
) -> dict[str, float]:
    """Return the efficiencies of the ranks of a training, as POP defines them.

    Parallel = load balance × communication, and communication = serialisation × transfer (POP
    Standard Metrics for Parallel Performance Analysis, https://www.pop-coe.eu/node/69).

    Parameters
    ----------
    useful : the useful seconds of each rank.
    transfer : the seconds that exchanges cost each rank beyond waiting. Those of the rank with most
        useful seconds count; POP simulates an ideal network.
    whole : the seconds of the slowest rank in all.
    """
    busiest = np.argmax(useful)
    most, ideal = np.asarray(useful)[busiest], 1 - np.asarray(transfer)[busiest] / whole
    return {
        "parallel_efficiency": np.mean(useful) / whole,
        "load_balance": np.mean(useful) / most,
        "communication_efficiency": most / whole,
        "serialisation_efficiency": most / whole / ideal,
        "transfer_efficiency": ideal,
    }


class Laws(NamedTuple):
    """Parameters of both laws. The first fit is the estimate. The other fits are of draws.

    Attributes
    ----------
    serial : s of Amdahl's law, shape (fits,).
    universal : α and β, shape (fits, 2).
    """

    serial: np.ndarray
    universal: np.ndarray

    @property
    def contention(self) -> Interval:
        return interval(self.universal[:, 0])

    @property
    def coherency(self) -> Interval:
        return interval(self.universal[:, 1])

    @property
    def fastest(self) -> Interval:
        """The n with the greatest speed-up; an end is None if the speed-up never stops rising."""
        contention, coherency = self.universal.T
        with np.errstate(divide="ignore", invalid="ignore"):
            fastest = np.sqrt(np.maximum(1 - contention, 0) / coherency)
        # With 0 / 0 no work is divided, so one process is as fast as any number of processes.
        return interval(np.maximum(np.nan_to_num(fastest, nan=1.0, posinf=np.inf), 1.0))

    def speedup(self, n: float) -> Interval:
        """Return T(1) / T(n) by the universal law."""
        return interval(1 / ratio(n, *self.universal.T))


def ratio(n: float, contention, coherency=0.0):
    """Return T(n) / T(1) by the universal scalability law; with coherency 0, by Amdahl's law."""
    return (1 + contention * (n - 1) + coherency * n * (n - 1)) / n


def fit(processes: Sequence[float], ratios: Sequence[Sequence[float]], seed: int = 0) -> Laws:
    """Fit both laws.

    Intervals are a parametric bootstrap: logarithms of the ratios are drawn from Student's t with
    their means and covariances over the repeats, and each draw is fitted. The intervals contain the
    differences between runs. They do not contain the error of the law.

    Parameters
    ----------
    processes : n of each point, above 1; at least `LEAST_POINTS` different ones.
    ratios : T(n) / T(1) of each repeat, shape (repeats, points). With fewer than
        `REPEATS_FOR_INTERVAL` repeats, there are no draws.
    """
    n, logs = np.asarray(processes, float), np.log(np.asarray(ratios, float))
    repeats = len(logs)
    points = logs.mean(axis=0, keepdims=True)
    if repeats >= REPEATS_FOR_INTERVAL:
        spread = np.atleast_2d(np.cov(logs.T)) / repeats
        student = stats.multivariate_t(
            points[0], spread, df=repeats - 1, allow_singular=True, seed=seed
        )
        points = np.vstack([points, student.rvs(DRAWS).reshape(DRAWS, len(n))])
    # T(n) / T(1) - 1 / n = α (n - 1) / n + β (n - 1)
    columns = np.column_stack([(n - 1) / n, n - 1])
    excesses = np.exp(points) - 1 / n
    return Laws(
        np.array([optimize.nnls(columns[:, :1], excess)[0][0] for excess in excesses]),
        np.array([optimize.nnls(columns, excess)[0] for excess in excesses]),
    )


def interval(fits: np.ndarray) -> Interval:
    """Return the estimate with the interval of the draws; an infinite or missing value is None."""
    low = high = math.inf
    if len(fits) > 1:
        tail = (1 - LEVEL) / 2
        low, high = np.quantile(fits[1:], [tail, 1 - tail], method="nearest")
    return Interval(*(float(end) if np.isfinite(end) else None for end in (fits[0], low, high)))
