"""Count the runs that failed, and tell how to repeat them."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.best_use import BestUse
from escala.core.environment import call
from escala.core.readable import counted
from escala.report.findings.words import Finding, Tables, with_labels
from escala.report.tables.views import names_of_rows

POSITION = 90
SECTION = "failures"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe what failed, and what to do about it."""
    yield from (Finding(text, "runs", "seconds_per_epoch") for text in _texts(tables, name))


def _texts(tables: Tables, name: str) -> Iterator[str]:
    current = tables["runs"][tables["runs"]["current"]]
    number = len(failed(tables))
    if not number:
        runs = f"All {len(current)} timing runs" if len(current) > 1 else "The only timing run"
        yield f"{runs} ended ok."
    else:
        yield f"Of {counted(len(current), 'timing run')}, {number} did not end ok."
        yield f"To repeat these, and the runs that they are compared with, {to_retry(name)}."


def failed(tables: Tables) -> pd.DataFrame:
    """Return the current runs that did not end ok, with labels."""
    runs = with_labels(tables["runs"], tables)
    return runs[runs["current"] & (runs["status"] != "ok")]


def has_failed(answer: BestUse, tables: Tables) -> bool:
    """Return whether runs behind an answer did not end ok."""
    return not answer.behind.isdisjoint(names_of_rows(failed(tables)))


def to_retry(name: str) -> str:
    """Return the phrase that tells how the runs of an experiment that failed are repeated."""
    return f"run `{call(f'retry results/{name}')}` and then the same command again"


def failures(tables: Tables) -> Iterator[tuple[str, str, str, str]]:
    """Yield the runs that failed alike: label, repeats, status, and the whole reason."""
    alike = failed(tables).fillna({"reason": ""}).groupby(["label", "status", "reason"], sort=False)
    for (label, status, reason), group in alike:
        yield label, ", ".join(map(str, group["repeat"])), status, reason
