"""Build the table of mean scores, and of their paired differences from the references.

A repeat has one split and one seed of weights and order, so that the runs of a repeat differ by
their configuration only. The intervals are Student's (1908, *The probable error of a mean*,
Biometrika 6), over repeats. They say how far a mean varies with split and seeds, and hold the
chance of few test rows only as far as the splits differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from escala.analysis.statistics import Interval, deviation, mean_interval
from escala.experiment.references import Configuration, compared_with
from escala.record.comparable import CONFIGURATION, Measurement
from escala.report.tables.base import (
    Evidence,
    by_configuration,
    kind_of,
    on_same_rows,
    reference_columns,
)

#: The score of every classification; a workload may bring further ones.
_ACCURACY = "accuracy"
_NO_REFERENCE = dict.fromkeys(
    ("reference", *(f"reference_{part}" for part in Configuration._fields))
)


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each score of a configuration and each reference, if it has some."""
    groups = by_configuration(evidence.evaluated)
    for names, runs in groups.items():
        found = list(compared_with(Configuration(*names[2:]), evidence.references))
        for number, reference in found or [(None, None)]:
            theirs = groups.get((*names[:2], *reference), []) if reference else []
            compared = reference_columns(number, reference) if reference else _NO_REFERENCE
            pairs = on_same_rows(runs, theirs)
            for score in scores_of(runs[0]):
                yield {
                    **dict(zip(CONFIGURATION, names, strict=True)),
                    **compared,
                    "score": score,
                    **_of_runs(
                        [value for run in runs if (value := scores_of(run).get(score)) is not None]
                    ),
                    **_of_pairs(score, pairs),
                    **{key: runs[0]["data"][key] for key in ("provenance", "leaky")},
                }


def scores_of(run: Measurement) -> dict[str, float]:
    """Return the scores of a run on all test rows, by name."""
    evaluation: Mapping = run["evaluation"]
    own = {_ACCURACY: evaluation[_ACCURACY]} if _ACCURACY in evaluation else {}
    return own | evaluation.get("scores", {})


def _of_runs(values: Sequence[float]) -> dict:
    return {
        "runs": len(values),
        **mean_interval(values).columns("mean"),
        "standard_deviation": deviation(values),
    }


def _of_pairs(score: str, pairs: Sequence[tuple[Measurement, Measurement]]) -> dict:
    both = [(scores_of(theirs), scores_of(mine)) for theirs, mine in pairs]
    values = [
        mine[score] - theirs[score] for theirs, mine in both if score in theirs and score in mine
    ]
    found: Interval = mean_interval(values)
    return {
        "pairs": len(values),
        **found.columns("difference"),
        "difference_standard_deviation": deviation(values),
        "kind": kind_of(found),
    }
