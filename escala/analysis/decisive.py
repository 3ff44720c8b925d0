"""Choose the verdict and the interval by which a row of the table `speedup` is judged.

The page and the advice both ask here, so they cannot contradict each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from escala.analysis.verdicts import NO_VERDICT


class Ratio(NamedTuple):
    """A quotient of times with its interval, or its range; NaN where unknown.

    Attributes
    ----------
    matches : number of matches behind it.
    best_of : number of configurations whose intervals cover simultaneously with 95 %; 1 if the
        interval is that of a single comparison.
    """

    value: float
    low: float
    high: float
    matches: int
    best_of: int = 1


def as_best(verdict: str, ratio: Ratio, row: Mapping[str, Any]) -> tuple[str, Ratio]:
    """Return verdict and ratio of the current runs, corrected for selecting the best of several.

    With too few matches for the simultaneous level, the interval is that of the single comparison.

    Parameters
    ----------
    verdict, ratio : at the level of a single comparison.
    row : one of the table `speedup`.
    """
    # Tables of earlier versions lack these columns.
    if pd.isna(row.get("best_of")) or row["best_of"] == 1:
        return verdict, ratio
    if row["best_verdict"] != NO_VERDICT:
        ratio = ratio._replace(
            low=row["best_low"], high=row["best_high"], best_of=int(row["best_of"])
        )
    return row["best_verdict"], ratio


def over_sessions(row: Mapping[str, Any]) -> tuple[str, Ratio, int] | None:
    """Return verdict, ratio and number of sessions, corrected likewise; None with too few sessions.

    Parameters
    ----------
    row : one of the table `speedup`.
    """
    if pd.isna(row.get("sessions_judged")):
        return None
    is_best = pd.notna(row["best_sessions_verdict"])
    name = "best_sessions" if is_best else "sessions_ratio"
    ratio = Ratio(
        row["sessions_ratio"],
        row[f"{name}_low"],
        row[f"{name}_high"],
        int(row["sessions_matches"]),
        int(row["best_of"]) if is_best else 1,
    )
    verdict = row["best_sessions_verdict" if is_best else "sessions_verdict"]
    return verdict, ratio, int(row["sessions_judged"])
