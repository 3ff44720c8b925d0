"""Select the intervals by which scores are compared with those of references.

Where a configuration has enough matches with a reference, the intervals are over repeats, of
which each has seeds of its own. With fewer matches they are over the test rows, of the models as
trained: other seeds would give other models, and other differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.report.findings.words import Tables, quoted, with_labels
from escala.report.tables.views import named_by, names_of_rows, programs

#: The columns that name a configuration and a reference.
COMPARED = (*CONFIGURATION, "reference")
#: What intervals of models as trained cover.
TEST_ROWS = "test rows only"


class Differences(NamedTuple):
    """Differences of scores whose intervals cover the same.

    Attributes
    ----------
    varied : what the intervals cover.
    bounded : a clause on the largest difference, to be formatted with `references` and `bound`.
    one : the word for a difference of the table.
    table, figure : the evidence.
    rows : of the table, with labels, and with the columns `what` (the score in words), `low` and
        `high`.
    """

    varied: str
    bounded: str
    one: str
    table: str
    figure: str
    rows: pd.DataFrame


def differences(tables: Tables) -> Iterator[Differences]:
    """Yield the differences from references, in groups that cover the same and are not empty."""
    repeats = over_repeats(tables)
    runs = dict(list(tables["runs"].groupby("workload")))
    unseeded = [name for name in programs(tables) if "seed" not in named_by(runs[name])]
    is_seeded, is_one = ~repeats["workload"].isin(unseeded), repeats["splits"] == 1
    bounded = "no mean score differs from that of {references} by more than {bound}"
    for varied, rows in (
        ("seeds only", repeats[is_one & is_seeded]),
        ("seeds and splits", repeats[~is_one & is_seeded]),
        ("repeats", repeats[~is_seeded]),
    ):
        if len(rows):
            yield Differences(varied, bounded, "score", "mean_scores", "mean_scores", rows)
    rest = _over_rows(tables, set(names_of_rows(repeats, COMPARED)))
    if len(rest):
        bounded = "no class differs from {references} by more than {bound} in precision or recall"
        evidence = "score_differences", "classification_reports"
        yield Differences(TEST_ROWS, bounded, "rate", *evidence, rest)


def over_repeats(tables: Tables) -> pd.DataFrame:
    """Return the differences of `mean_scores` that have enough matches, as `Differences.rows`."""
    means = tables["mean_scores"]
    known = with_labels(means[means["matches"] >= VALUES_FOR_INTERVAL], tables)
    return known.assign(
        what=[f"mean {quoted(name)}" for name in known["score"]],
        low=known["difference_low"],
        high=known["difference_high"],
    )


def _over_rows(tables: Tables, others: set[tuple]) -> pd.DataFrame:
    """Return the differences of `score_differences`, a row for each rate, as `Differences.rows`.

    Parameters
    ----------
    others : the comparisons that are left out, by the values of `COMPARED`.
    """
    scores = with_labels(tables["score_differences"], tables)
    is_left = [names not in others for names in names_of_rows(scores, COMPARED)]
    scores = scores[pd.Series(is_left, scores.index, bool)]
    rates = [
        scores.assign(
            what=[f"{rate} of {quoted(name)}" for name in scores["class"]],
            low=scores[f"{rate}_difference_low"],
            high=scores[f"{rate}_difference_high"],
        )
        for rate in ("precision", "recall")
    ]
    return pd.concat(rates, ignore_index=True).dropna(subset=["low", "high"])
