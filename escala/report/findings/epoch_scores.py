"""Name the epochs after which scores were largest."""

from __future__ import annotations

from collections.abc import Iterator

from escala.record.comparable import CONFIGURATION
from escala.report.findings.words import Finding, Tables, joined, quoted, span, with_labels

POSITION = 62
SECTION = "scores"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe the largest value of each score over the epochs of a run, and its epoch.

    Of each score, only the configuration with the largest median over runs is named.
    """
    scores = with_labels(tables["epoch_scores"], tables)
    if scores.empty:
        return
    runs = [*CONFIGURATION, "repeat", "session"]
    largest = scores.loc[scores.groupby([*runs, "score"], sort=False)["value"].idxmax()]
    sides = joined(sorted(scores["validated_on"].unique()))
    for score, of_score in largest.groupby("score", sort=False):
        of_label = of_score.groupby("label", sort=False)
        medians = of_label["value"].median()
        label = medians.idxmax()
        epochs = of_label.get_group(label)["epoch"]
        yield Finding(
            f"By the {sides} rows, {quoted(score)} is largest for {quoted(label)}: a median of "
            f"{medians[label]:.4g}, after epoch {span(epochs)}.",
            "epoch_scores",
            "accuracy_per_epoch",
        )
