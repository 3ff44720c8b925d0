"""Compute the number of matches that an experiment needs, from its pilot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from escala.analysis import statistics
from escala.analysis.comparable import Matched
from escala.analysis.statistics import VALUES_FOR_INTERVAL, deviation
from escala.analysis.verdicts import matches_needed, simultaneous_level
from escala.report.tables.base import Evidence, name_columns, ratios, reference_columns
from escala.report.tables.speedup import comparisons

FORMAT = 1
#: A number of matches that no rule asks for.
_NO_LIMIT = 10**9


def plan(evidence: Evidence, wanted: Mapping[str, Any]) -> dict:
    """Return the content of `pilot.json`.

    One number holds for all configurations, because their repeats take turns: the largest that a
    ratio to a reference needs.

    Parameters
    ----------
    evidence : the runs of the pilot.
    wanted : `half_width`, `repeats` and `at_most` of the experiment.

    Returns
    -------
    `repeats` is the number of them, those of the pilot included. In `comparisons`, `deviation` is
    the standard deviation of the logarithms of a pilot's ratios, and `needed` the matches that the
    rule requires. Both are None with fewer than two ratios.
    """
    half_width = float(wanted["half_width"].rstrip("% ")) / 100
    every = list(comparisons(evidence))
    rivals = Counter(comparison.names[:2] for comparison in every if comparison.number == 1)
    # Fewer matches give no verdict on the best of several.
    least = {
        task: max(VALUES_FOR_INTERVAL, statistics.fewest_matches(simultaneous_level(number)))
        for task, number in rivals.items()
    }
    rows = []
    for comparison in every:
        current = [pair for pair in comparison.newest.pairs if all(run["current"] for run in pair)]
        values = ratios(Matched([run for run, _ in current], [run for _, run in current], []))
        needed = None
        if len(values) > 1:
            needed = matches_needed(values, half_width, _NO_LIMIT)
            needed = max(needed, least[comparison.names[:2]])
        rows.append(
            {
                **name_columns(comparison.names),
                **reference_columns(comparison.number, comparison.reference),
                "pilot_matches": len(values),
                "deviation": deviation(np.log(values)),
                "needed": needed,
            }
        )
    most = max([wanted["repeats"], *(row["needed"] for row in rows if row["needed"])])
    return {
        "format": FORMAT,
        "half_width": half_width,
        "pilot": wanted["repeats"],
        "at_most": wanted["at_most"],
        "repeats": min(most, wanted["at_most"]),
        "comparisons": rows,
    }
