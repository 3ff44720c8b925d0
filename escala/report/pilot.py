"""Compute the number of pairs that an experiment needs, from its pilot, by Stein's rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from escala.analysis.statistics import deviation
from escala.analysis.verdicts import pairs_needed
from escala.record.comparable import CONFIGURATION
from escala.report.tables import runs
from escala.report.tables.base import Evidence, reference_columns
from escala.report.tables.speedup import Comparison, comparisons

FORMAT = 1
#: A number of pairs that no rule asks for.
_NO_LIMIT = 10**9


def plan(evidence: Evidence, pairs: Mapping[str, Any]) -> dict:
    """Return the content of `pairs.json`.

    One number holds for all configurations, because their repeats take turns: the largest that a
    ratio to a reference needs.

    Parameters
    ----------
    evidence : the runs of the pilot.
    pairs : `half_width`, `pilot` and `at_most` of the experiment.

    Returns
    -------
    `pairs` is the number of repeats, those of the pilot included. In `comparisons`, `deviation` is
    the standard deviation of the logarithms of a pilot's ratios, and `needed` the pairs that the
    rule requires. Both are None with fewer than two ratios.
    """
    share = float(pairs["half_width"].rstrip("% ")) / 100
    found = [_compared(each, share) for each in comparisons(evidence)]
    most = max([pairs["pilot"], *(row["needed"] for row in found if row["needed"])])
    return {
        "format": FORMAT,
        "half_width": share,
        "pilot": pairs["pilot"],
        "at_most": pairs["at_most"],
        "pairs": min(most, pairs["at_most"]),
        "comparisons": found,
    }


def _compared(comparison: Comparison, half_width: float) -> dict:
    """Return how much the ratios of a pilot differ, and how many pairs they require."""
    ratios = [
        _seconds(mine) / _seconds(theirs)
        for mine, theirs in zip(comparison.pairs.runs, comparison.pairs.references, strict=True)
        if mine["current"] and theirs["current"]
    ]
    enough = len(ratios) > 1
    return {
        **dict(zip(CONFIGURATION, comparison.names, strict=True)),
        **reference_columns(comparison.number, comparison.reference),
        "pilot_pairs": len(ratios),
        "deviation": deviation(np.log(ratios)),
        "needed": pairs_needed(ratios, half_width, _NO_LIMIT) if enough else None,
    }


def _seconds(run: Mapping[str, Any]) -> float:
    return runs.row(run)["train_seconds_per_epoch"]
