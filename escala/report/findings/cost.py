"""Describe what the answer costs in core time."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.report.findings.verdicts import (
    Ratio,
    answering,
    interval,
    names_of_reference,
    names_of_rows,
    own_names,
)
from escala.report.findings.words import Finding, Tables, a, quoted, sentence
from escala.report.tables.views import unit

POSITION = 50
SECTION = "cost"
_SECONDS_PER_HOUR = 3600


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Compare the core time of an epoch and of a whole run with those of the reference."""
    table = tables["configurations"]
    wall = dict(zip(names_of_rows(table), table["wall_seconds"], strict=True))
    for row in answering(tables):
        if row.kind == "unavailable" or pd.isna(row.efficiency):
            continue
        label, reference = quoted(row.label), quoted(row.reference_label)
        cores = Ratio(
            1 / row.efficiency, 1 / row.efficiency_high, 1 / row.efficiency_low, row.pairs
        )
        yield Finding(
            sentence(
                f"{a(unit(tables, row.workload))} of {label} takes {cores.value:.2f} times the "
                f"core time of one of {reference}{interval(cores)}"
            ),
            "speedup",
            "speedup",
        )
        mine, theirs = (
            cores * wall[names] / _SECONDS_PER_HOUR
            for cores, names in (
                (row.cores, own_names(row)),
                (row.reference_cores, names_of_reference(row)),
            )
        )
        if not pd.isna(mine + theirs):
            yield Finding(
                f"A whole run of {label} takes {mine:.2g} core-hours, and one of {reference} "
                f"{theirs:.2g}.",
                "configurations",
            )
