"""The table of the number of matches that an experiment needs, and its calculation from a pilot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from escala.analysis.comparable import Matched
from escala.analysis.statistics import VALUES_FOR_INTERVAL, deviation, fewest_matches
from escala.analysis.verdicts import matches_needed, simultaneous_level
from escala.report.tables.base import (
    Evidence,
    Tables,
    name_columns,
    ratios,
    reference_columns,
)
from escala.report.tables.speedup import comparisons

FORMAT = 1
#: A limit on the number of matches that no experiment reaches.
_NO_LIMIT = 10**9


def plan(evidence: Evidence, settings: Mapping[str, Any]) -> dict:
    """Return the content of `pilot.json`.

    Configurations take turns in each repeat, so all have the same number of repeats. It is the
    largest number that any ratio to a reference needs.

    Parameters
    ----------
    evidence : the runs of the pilot.
    settings : `half_width`, `repeats` and `at_most` of the experiment.

    Returns
    -------
    `repeats` is the number of repeats, including the pilot's. In `comparisons`, `deviation` is the
    standard deviation of the logarithms of the pilot's ratios, and `needed` is the number of
    matches that the rule requires. Both are None with fewer than two ratios.
    """
    half_width = float(settings["half_width"].rstrip("% ")) / 100
    every = list(comparisons(evidence))
    # The number of alternatives, by dataset and workload.
    alternatives = Counter(compared.names[:2] for compared in every if compared.number == 1)
    rows = []
    for compared in every:
        current = [pair for pair in compared.newest.pairs if all(run["current"] for run in pair)]
        of_pilot = ratios(
            Matched([run for run, _ in current], [reference for _, reference in current], [])
        )
        needed = None
        if len(of_pilot) > 1:
            # The last two numbers are the fewest matches for a verdict on the best of several.
            level = simultaneous_level(alternatives[compared.names[:2]])
            needed = max(
                matches_needed(of_pilot, half_width, _NO_LIMIT),
                VALUES_FOR_INTERVAL,
                fewest_matches(level),
            )
        rows.append(
            {
                **name_columns(compared.names),
                **reference_columns(compared.number, compared.reference),
                "pilot_matches": len(of_pilot),
                "deviation": deviation(np.log(of_pilot)),
                "needed": needed,
            }
        )
    most = max([settings["repeats"], *(row["needed"] for row in rows if row["needed"])])
    return {
        "format": FORMAT,
        "half_width": half_width,
        "pilot": settings["repeats"],
        "at_most": settings["at_most"],
        "repeats": min(most, settings["at_most"]),
        "comparisons": rows,
    }


def pilot(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each comparison of the pilot, if there is one.

    The column `cut` tells whether the experiment allows fewer matches than the comparison needs.
    """
    plan = evidence.pilot
    for row in plan["comparisons"] if plan else ():
        cut = None if row["needed"] is None else row["needed"] > plan["at_most"]
        yield row | {key: plan[key] for key in ("half_width", "repeats")} | {"cut": cut}
