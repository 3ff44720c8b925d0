"""Describe how scores depend on similar genomes in training."""

from __future__ import annotations

import pandas as pd

from escala.report.findings.words import Tables, joined
from escala.report.tables.views import any_ok

POSITION = 70


def sentence(tables: Tables, name: str) -> str:
    """Describe, for each split, how scores depend on similar genomes in training."""
    leakage = tables["leakage"]
    if leakage.empty and any_ok(tables):
        return ""
    if leakage.empty:
        return "What near-duplicates in training add to the scores is unavailable: no run ended ok."
    parts = [_split_by(dataset, group) for dataset, group in leakage.groupby("dataset", sort=False)]
    return f"What the scores mean (medians over runs): {'; '.join(parts)}."


def _split_by(dataset: str, group: pd.DataFrame) -> str:
    """Describe one dataset: its test rows, what is not scored, and every workload's accuracy."""
    first, share = group.iloc[0], 100 * group["similar_share"].median()
    scores = []
    for workload, runs in group.groupby("workload", sort=False):
        rest = runs["rest_accuracy"].dropna()
        said = f" and {rest.median():.3f} on the rest" if len(rest) else ""
        scores.append(f"{workload} {runs['accuracy'].median():.3f}{said}")
    no_rest = (
        "" if group["rest_rows"].any()
        else ", so that accuracy on the rest is unavailable (0 rows)"
    )  # fmt: skip
    whole = sorted(set(";".join(group["not_separable"].dropna()).split(";")) - {""})
    return (
        f"on {dataset}, split by {first['split_by']}, {share:.0f} % of the test rows have a "
        f"near-duplicate (at least {first['similarity']:g} of their k-mers) in training{no_rest}, "
        f"and the accuracy is {joined(scores)}"
        + (f"; {joined(whole)} cannot be separated and have no score" if whole else "")
    )
