"""Name the epochs after which scores were largest."""

from __future__ import annotations

from escala.record.comparable import CONFIGURATION
from escala.report.findings.words import Tables, joined, span, with_labels

POSITION = 62


def sentence(tables: Tables, name: str) -> str:
    """Describe the largest value of each score over the epochs of a run, and its epoch."""
    scores = with_labels(tables["epoch_scores"], tables)
    if scores.empty:
        return ""
    runs = [*CONFIGURATION, "repeat", "session"]
    largest = scores.loc[scores.groupby([*runs, "score"], sort=False)["value"].idxmax()]
    parts = [
        f"of {score} "
        + joined(
            f"{group['value'].median():.4g} for {label} (epoch {span(group['epoch'])})"
            for label, group in of_score.groupby("label", sort=False)
        )
        for score, of_score in largest.groupby("score", sort=False)
    ]
    sides = joined(sorted(scores["validated_on"].unique()))
    return (
        f"The largest scores after an epoch, by the {sides} rows and as medians over the runs, are "
        f"{'; '.join(parts)}."
    )
