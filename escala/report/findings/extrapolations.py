"""Describe what laws, fitted to what was measured, say of more ranks or threads."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.report.findings.verdicts import answering, names_of_rows, own_names
from escala.report.findings.words import Finding, Tables, quoted
from escala.runtime.layout import Layout

POSITION = 46
SECTION = "sure"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe twice the most ranks or threads of each series that has an answer.

    A fitted fraction above 1, where more ranks took longer than one, is outside of Amdahl's law.
    """
    table = tables["amdahl"]
    table = table[(table["law_kind"] == "estimated") & (table["reference"] == 1)]
    table = table[~(table["contention"].isna() & (table["amdahl_fraction"] > 1))]
    names = pd.Series(list(names_of_rows(table)), table.index, object)
    table = table[names.isin(set(map(own_names, answering(tables))))]
    for row in table.itertuples():
        number = row.extrapolated_times * Layout.parse(row.reference_layout).ranks
        if row.law_over == "threads":
            number = row.extrapolated_times * row.reference_cores
        law = "Amdahl's law" if pd.isna(row.contention) else "the universal scalability law"
        found = f"{row.extrapolated_speedup:.2f}"
        if not pd.isna(row.extrapolated_speedup_low):
            found += f" ({row.extrapolated_speedup_low:.2f}–{row.extrapolated_speedup_high:.2f})"
        yield Finding(
            f"With {number:.0f} {row.law_over}, {quoted(f'{row.strategy} {row.variant}')} would be "
            f"{found} times as fast as its reference, extrapolated by {law}.",
            "amdahl",
        )
