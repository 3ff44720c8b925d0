"""Build the table of mean scores, and of their paired differences from the references.

A repeat has one split and one seed of weights and order, so that the runs of a repeat differ by
their configuration only. The intervals are Student's (1908, *The probable error of a mean*,
Biometrika 6), over repeats. If all repeats have one split, they do not include the effect of the
test rows or of the training rows. Several splits share rows, so the intervals are then rather too
narrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from escala.analysis.statistics import deviation, mean_interval
from escala.experiment.references import Configuration, compared_with
from escala.record.comparable import CONFIGURATION, Measurement
from escala.report.tables.base import (
    Evidence,
    by_configuration,
    kind_of,
    on_same_rows,
    reference_columns,
)

#: The score of every classification. A workload with scores of its own has those in its place.
ACCURACY = "accuracy"
_NO_REFERENCE = dict.fromkeys(
    ("reference", *(f"reference_{part}" for part in Configuration._fields))
)


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each score of a configuration and each reference, if it has some."""
    groups = by_configuration(evidence.evaluated)
    for names, runs in groups.items():
        scores = dict.fromkeys(score for run in runs for score in scores_of(run))
        for number, reference in _references(names, runs, evidence) or [(None, None)]:
            theirs = groups.get((*names[:2], *reference), []) if reference else []
            compared = reference_columns(number, reference) if reference else _NO_REFERENCE
            pairs = on_same_rows(runs, theirs)
            for score in scores:
                yield {
                    **dict(zip(CONFIGURATION, names, strict=True)),
                    **compared,
                    "score": score,
                    **_of_runs(score, [run for run in runs if score in scores_of(run)]),
                    **_of_pairs(score, pairs),
                    **{key: runs[0]["data"][key] for key in ("provenance", "leaky")},
                }


def scores_of(run: Measurement) -> dict[str, float]:
    """Return the scores of a run on all test rows, by name."""
    # A program may report none.
    evaluation: Mapping = run["evaluation"] or {}
    own = {ACCURACY: evaluation[ACCURACY]} if ACCURACY in evaluation else {}
    return own | evaluation.get("scores", {})


def _references(
    names: Sequence[str], runs: Sequence[Measurement], evidence: Evidence
) -> list[tuple[int, Configuration]]:
    """Return the references of a configuration. A fit has none: all its runs are in one process."""
    if runs[0]["training"]["kind"] == "fit":
        return []
    return list(compared_with(Configuration(*names[2:]), evidence.references))


def _of_runs(score: str, runs: Sequence[Measurement]) -> dict:
    values = [scores_of(run)[score] for run in runs]
    return {
        "runs": len(runs),
        "splits": len({run["data"]["split_seed"] for run in runs}),
        **mean_interval(values).columns("mean"),
        "standard_deviation": deviation(values),
    }


def _of_pairs(score: str, pairs: Sequence[tuple[Measurement, Measurement]]) -> dict:
    both = [(scores_of(theirs), scores_of(mine)) for theirs, mine in pairs]
    values = [
        mine[score] - theirs[score] for theirs, mine in both if score in theirs and score in mine
    ]
    found = mean_interval(values)
    return {
        "pairs": len(values),
        **found.columns("difference"),
        "difference_standard_deviation": deviation(values),
        "kind": kind_of(found),
    }
