"""Columns on how close together the two runs of each match were, in space and time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from statistics import median

from escala.analysis.comparable import Measurement
from escala.report.tables import base

Side = tuple[Measurement, Measurement]


def columns(sides: Sequence[Side]) -> dict[str, bool | float | None]:
    """Return the columns of matches; all are empty without any.

    Parameters
    ----------
    sides : the two runs of each match.
    """
    apart = [seconds_apart(*side) for side in sides]
    return {
        "same_nodes": all(on_same_nodes(*side) for side in sides) if sides else None,
        "seconds_apart": median(apart) if apart else None,
        "node_spread": node_spread(run for side in sides for run in side),
    }


def on_same_nodes(one: Measurement, other: Measurement) -> bool:
    """Return whether all nodes of one run are among those of the other."""
    mine, theirs = (set(run["ranks"]["hosts"]) for run in (one, other))
    return mine <= theirs or theirs <= mine


def seconds_apart(one: Measurement, other: Measurement) -> float:
    """Return the seconds from the start of one run to that of the other."""
    starts = [datetime.fromisoformat(run["started"]) for run in (one, other)]
    return abs((starts[0] - starts[1]).total_seconds())


def node_spread(runs: Iterable[Measurement]) -> float | None:
    """Return how much longer the slowest node takes than the fastest; 0.02 is 2 %.

    It is the largest of the configurations of one node in `runs`, by the median time of each node.
    None if none of them ran on two nodes.
    """
    spreads = []
    for same in base.by_configuration(
        run for run in runs if len(run["ranks"]["hosts"]) == 1
    ).values():
        nodes: dict[str, list[float]] = {}
        for run in same:
            nodes.setdefault(run["ranks"]["hosts"][0], []).append(base.seconds_per_epoch(run))
        medians = [median(times) for times in nodes.values()]
        if len(medians) > 1:
            spreads.append(max(medians) / min(medians) - 1)
    return max(spreads, default=None)
