"""Describe how many pairs an experiment needs according to its pilot."""

from __future__ import annotations

from collections.abc import Iterator

from escala.report.findings.words import Finding, Tables, quoted, with_labels

POSITION = 41
SECTION = "sure"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe the ratio that needed the most pairs, and whether the experiment allowed as many."""
    table = with_labels(tables["pairs"], tables).dropna(subset=["needed"])
    if table.empty:
        return
    row = table.loc[table["needed"].idxmax()]
    yield Finding(
        f"In the pilot the ratio of {quoted(row['label'])} had a deviation of "
        f"{100 * row['deviation']:.1f} %, which requires {row['needed']} pairs.",
        "pairs",
    )
    if row["cut"]:
        yield Finding(
            f"The experiment allowed {row['pairs']} pairs, so intervals may be wider than "
            "requested.",
            "pairs",
        )
