"""Name the epochs after which scores were largest."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.record.comparable import CONFIGURATION
from escala.report.findings.words import Tables, joined, span, with_labels

POSITION = 62


def sentence(tables: Tables, name: str) -> str:
    """Describe the largest value of each score over the epochs of a run, and its epoch.

    Of each score, only the configurations with the largest and the smallest median are named.
    """
    scores = with_labels(tables["epoch_scores"], tables)
    if scores.empty:
        return ""
    runs = [*CONFIGURATION, "repeat", "session"]
    largest = scores.loc[scores.groupby([*runs, "score"], sort=False)["value"].idxmax()]
    parts = [
        f"of {score} "
        + joined(
            f"{group['value'].median():.4g} for {label} (epoch {span(group['epoch'])})"
            for label, group in _extremes(of_score)
        )
        for score, of_score in largest.groupby("score", sort=False)
    ]
    sides = joined(sorted(scores["validated_on"].unique()))
    return (
        f"The largest scores after an epoch, by the {sides} rows and as medians over the runs, are "
        f"{'; '.join(parts)}; the table `epoch_scores` has all."
    )


def _extremes(scores: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of the configurations with the largest and the smallest median, by label."""
    of_label = scores.groupby("label", sort=False)
    medians = of_label["value"].median()
    for label in dict.fromkeys([medians.idxmax(), medians.idxmin()]):
        yield label, of_label.get_group(label)
