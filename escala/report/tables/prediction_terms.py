"""Build the table of the errors of predictions by term of a step.

The terms of the cost model are set beside the parts of a step that clocks measure
(`escala.analysis.attribution`). A term of the model may stand for several parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from escala.analysis.attribution import WHOLE
from escala.record.comparable import CONFIGURATION
from escala.report.tables import attribution, predictions
from escala.report.tables.base import Evidence, frame

#: By term: the columns of the table `predictions`, and the parts of the table `attribution`.
TERMS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "computing": (
        ("fixed_seconds", "compute_seconds", "contention_seconds"),
        ("input", "dispatch", "compute"),
    ),
    "skew": (("skew_seconds",), ("skew",)),
    "exchange": (("exchange_seconds",), ("transfer", "copies", "negotiation")),
    "update": (("update_seconds",), ("optimiser",)),
    "step": (("step_seconds",), (WHOLE,)),
}


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each term of each configuration that has a prediction and clocks."""
    if evidence.predictions_file is None:
        return
    predicted = frame("predictions", predictions.rows(evidence))
    predicted = predicted[predicted["step_seconds"].notna() & predicted["uncompared"].isna()]
    measured = frame("attribution", attribution.rows(evidence))
    by_name = dict(iter(measured.groupby(list(CONFIGURATION), sort=False)))
    for row in predicted.to_dict("records"):
        names = tuple(row[name] for name in CONFIGURATION)
        if names in by_name:
            yield from _rows(row, by_name[names])


def _rows(predicted: Mapping, parts: pd.DataFrame) -> Iterator[dict]:
    of_part = parts.pivot(index="rank", columns="part", values="median_seconds")
    of_part = of_part.mean()
    for term, (columns, names) in TERMS.items():
        seconds = sum(predicted[column] for column in columns)
        known = [of_part.get(name) for name in names]
        found = None if any(map(pd.isna, known)) else float(sum(known))
        yield {name: predicted[name] for name in CONFIGURATION} | {
            "term": term,
            "predicted_seconds": seconds,
            "measured_seconds": found,
            "error_seconds": None if found is None else seconds - found,
        }
