"""Build the table of precision, recall and F1 by class, pooled over runs and splits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from escala.analysis.statistics import Interval, Rates, pooled_rates
from escala.record.comparable import CONFIGURATION
from escala.report.tables.base import Evidence, by_configuration, kind_of


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each class of each configuration."""
    for names, runs in by_configuration(evidence.scored).items():
        splits = [run["data"]["split_seed"] for run in runs]
        matrices = [np.array(run["evaluation"]["confusion_matrix"]) for run in runs]
        rates = pooled_rates(matrices, splits)
        for label, rate in zip(runs[0]["evaluation"]["classes"], rates, strict=True):
            # Rows predicted as a class that is not tested are errors only of the other classes.
            unknown = Interval(None, None, None)
            precision, recall = (rate.precision, rate.recall) if rate.actual else (unknown, unknown)
            yield {
                **dict(zip(CONFIGURATION, names, strict=True)),
                "class": label,
                "runs": len(runs),
                "splits": len(set(splits)),
                **precision.columns("precision"),
                "precision_kind": kind_of(precision),
                **recall.columns("recall"),
                "recall_kind": kind_of(recall),
                "f1": _f1(rate),
                "true_positives": rate.true_positives,
                "predicted": rate.predicted,
                "actual": rate.actual,
                "provenance": runs[0]["data"]["provenance"],
                "leaky": runs[0]["data"]["leaky"],
            }


def _f1(rate: Rates) -> float | None:
    rows = rate.predicted + rate.actual
    return 2 * rate.true_positives / rows if rate.actual else None
