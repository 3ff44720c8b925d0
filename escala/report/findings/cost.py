"""Describe what the best use costs in core time."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.best_use import BestUse
from escala.report.findings.best_use import answers
from escala.report.findings.compared import Ratio, interval
from escala.report.findings.words import Finding, Tables, a, quoted, sentence
from escala.report.tables.views import unit

POSITION = 50
SECTION = "cost"
_SECONDS_PER_HOUR = 3600


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Compare the core time with that of the quickest configuration that uses less."""
    for answer in answers(tables):
        yield from (
            Finding(sentence(text), "best_use", "speedup") for text in _texts(answer, tables)
        )


def _texts(answer: BestUse, tables: Tables) -> Iterator[str]:
    fewer = answer.fewer
    if fewer is None or fewer.ratio_of == "target":
        return
    times = answer.resources.cores / fewer.resources.cores
    cores = Ratio(*(times * each for each in fewer.ratio[:3]), fewer.ratio.matches)
    one = a(unit(tables, answer.workload))
    best, other = quoted(answer.label), quoted(fewer.label)
    yield (
        f"{one} of {best} takes {cores.value:.2f} times the core time (cores × seconds) of {one} "
        f"of {other}{interval(cores)}"
    )
    if not pd.isna(fewer.row["run_seconds"]):
        hours = [
            used.cores * fewer.row[seconds] / _SECONDS_PER_HOUR
            for used, seconds in (
                (answer.resources, "run_seconds"), (fewer.resources, "alternative_run_seconds")
            )
        ]  # fmt: skip
        yield (
            f"a whole run of {best} takes {hours[0]:.2g} core-hours, and a run of {other} "
            f"{hours[1]:.2g}"
        )
