"""Describe what the best use costs in core time."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.report.findings.best_use import to_main
from escala.report.findings.compared import Compared, Ratio, interval
from escala.report.findings.words import Finding, Tables, a, quoted, sentence
from escala.report.tables.views import names_of_rows

POSITION = 50
SECTION = "cost"
_SECONDS_PER_HOUR = 3600


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Compare the core time with that of the main reference."""
    for row in to_main(tables):
        if row.kind != "unavailable" and not pd.isna(row.efficiency):
            yield from _core_time(row, tables)


def _core_time(row: Compared, tables: Tables) -> Iterator[Finding]:
    """Compare the core time of an epoch and of a whole run with those of the reference."""
    label, reference = quoted(row.label), quoted(row.reference_label)
    cores = Ratio(1 / row.efficiency, 1 / row.efficiency_high, 1 / row.efficiency_low, row.matches)
    one = a(row.unit(tables))
    text = (
        f"{one} of {label} takes {cores.value:.2f} times the core time (cores × seconds) "
        f"of {one} of {reference}{interval(cores)}"
    )
    yield Finding(sentence(text), "speedup", "speedup")
    table = tables["configurations"]
    wall = dict(zip(names_of_rows(table), table["wall_seconds"] / _SECONDS_PER_HOUR, strict=True))
    mine = row.cores * wall[row.names]
    theirs = row.reference_cores * wall[row.reference_names]
    if not pd.isna(mine + theirs):
        yield Finding(
            f"A whole run of {label} takes {mine:.2g} core-hours, and a run of {reference} "
            f"{theirs:.2g}.",
            "configurations",
        )
