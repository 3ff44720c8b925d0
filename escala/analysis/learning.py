"""Compare the accuracy of a network with what naming the largest class gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.rates import rate_interval

LEARNS, DOES_NOT_LEARN, UNKNOWN = "learns", "does not learn", "unknown"


class Learning(NamedTuple):
    """Whether a configuration learns; numbers are None where they are unknown.

    Attributes
    ----------
    kind : `LEARNS` if the interval of the accuracy is above `largest_class`, else `DOES_NOT_LEARN`;
        `UNKNOWN` without classes, without an accuracy of whole epochs, and of a program, which may
        call anything its accuracy.
    accuracy, low, high : the median over runs, with Wilson's 95 % interval over the test rows.
    largest_class : the fraction of the test rows that are of the largest class.
    baseline, workload : the best accuracy of a workload of the dataset that is fitted at once.
    """

    kind: str
    accuracy: float | None = None
    low: float | None = None
    high: float | None = None
    largest_class: float | None = None
    baseline: float | None = None
    workload: str | None = None


def learning(tables: Mapping[str, pd.DataFrame], names: tuple) -> Learning:
    """Return whether a configuration learns.

    Parameters
    ----------
    names : the values of `CONFIGURATION`.
    """

    def matching(table: pd.DataFrame) -> list[bool]:
        rows = table[list(CONFIGURATION)].itertuples(index=False, name=None)
        return [row == names for row in rows]

    configurations, pooled = tables["configurations"], tables["pooled"]
    row = configurations.loc[matching(configurations)].dropna(subset=["accuracy"])
    rows = pooled.loc[matching(pooled), "actual"]
    if row.empty or row["training_kind"].iloc[0] == "command" or not rows.sum():
        return Learning(UNKNOWN)
    interval = rate_interval(row["accuracy"].iloc[0] * rows.sum(), rows.sum())
    largest = float(rows.max() / rows.sum())
    is_fit = (configurations["training_kind"] == "fit") & (configurations["dataset"] == names[0])
    fits = configurations[is_fit].dropna(subset=["accuracy"]).sort_values("accuracy")
    best = fits[["accuracy", "workload"]].iloc[-1] if len(fits) else (None, None)
    return Learning(LEARNS if interval.low > largest else DOES_NOT_LEARN, *interval, largest, *best)
