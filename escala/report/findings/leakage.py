"""Describe how scores depend on similar genomes in training."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.report.findings.words import Finding, Tables, quoted
from escala.report.tables.views import all_programs, any_ok

POSITION = 70
SECTION = "scores"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe, for each split, how scores depend on similar genomes in training."""
    leakage = tables["leakage"]
    if leakage.empty and not any_ok(tables) and not all_programs(tables):
        yield _finding(
            "What near-duplicates in training add to the scores is unavailable: no run ended ok."
        )
    for dataset, group in leakage.groupby("dataset", sort=False):
        yield from map(_finding, _split_by(quoted(dataset), group))


def _finding(text: str) -> Finding:
    return Finding(text, "leakage", "splits")


def _split_by(dataset: str, group: pd.DataFrame) -> Iterator[str]:
    """Describe one dataset: its test rows, what is not scored, and every workload's accuracy."""
    first, share = group.iloc[0], 100 * group["similar_share"].median()
    # A share below 1 % is not shown as 0 %.
    number = f"{share:.0f} %" if share == 0 or share >= 1 else f"{share:.1g} %"
    yield (
        f"On {dataset}, split by {quoted(first['split_by'])}, {number} of the test rows have "
        "a near-duplicate in training."
    )
    for workload, runs in group.groupby("workload", sort=False):
        rest = runs["rest_accuracy"].dropna()
        of_rest = (
            f"and {rest.median():.3f} on rows without near-duplicate" if len(rest)
            else "and unavailable on rows without near-duplicate, as there are none"
        )  # fmt: skip
        yield (
            f"On {dataset}, the accuracy of {quoted(workload)} is {runs['accuracy'].median():.3f} "
            f"on all test rows, {of_rest}."
        )
    whole = sorted(set(";".join(group["not_separable"].dropna()).split(";")) - {""})
    if whole:
        yield f"On {dataset}, {quoted(', '.join(whole))} cannot be separated and has no score."
