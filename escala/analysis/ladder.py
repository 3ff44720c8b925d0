"""Compute the ratio of each change of a ladder, from one configuration to another.

Each pair of neighbouring rungs is a series of its own, in which the two take turns. So are the two
ends. The ratios of the rungs were measured at different times, with different runs. So their
product equals the ratio of the ends only if the rungs explain the whole difference.

A time is that of a whole epoch, `epoch_wall_seconds`, because checkpoints are not written within
the training steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from escala.analysis.statistics import (
    combined_interval,
    difference_interval,
    geometric_pseudo_median,
    pseudo_median,
    ratio_interval,
)
from escala.experiment.references import Configuration
from escala.record.comparable import left_out, newest_of_repeats, paired

RUNG, PRODUCT, DIRECT = "rung", "product", "direct"
#: Largest difference of the product of the ratios from the ratio of the ends, as a share of it.
TOLERANCE = 0.1

_CONFIGURATION = list(Configuration._fields)
_SECONDS = "epoch_wall_seconds_per_epoch"


def rows(runs: pd.DataFrame, pairs: Sequence[Mapping[str, Any]]) -> Iterator[dict]:
    """Yield the rows of `ladder.csv`.

    Parameters
    ----------
    runs : measurements of the pairs' runs, including older sessions, with the columns of
        `runs.csv`, `pair`, and `measurement`, the content of their files.
    pairs : the `escala.experiment.Pair`s, those of a ladder one after the other, its ends last.
    """
    for (dataset, workload), group in runs.groupby(["dataset", "workload"], sort=False):
        first = group.iloc[0]
        for ladder, of_ladder in groupby(pairs, key=lambda pair: pair["ladder"]):
            for row in _ladder(group, list(of_ladder)):
                yield {
                    "dataset": dataset,
                    "workload": workload,
                    "ladder": ladder,
                    **row,
                    "provenance": first["provenance"],
                    "leaky": first["leaky"],
                }


def _ladder(runs: pd.DataFrame, pairs: list[Mapping]) -> Iterator[dict]:
    of_pair = [runs[runs["pair"] == pair["name"]] for pair in pairs]
    series = list(map(_times, of_pair, pairs))
    times = [seconds for seconds, _ in series]
    refused = [reasons for _, reasons in series]
    compared = list(map(_compared, of_pair, pairs, times, refused))
    if len(pairs) == 1:
        yield compared[0]
    else:
        *rungs, direct = compared
        yield from rungs
        yield _product(rungs, direct, times)
        yield direct


def _times(runs: pd.DataFrame, pair: Mapping) -> tuple[pd.DataFrame, list[str]]:
    """Return the seconds of both sides of a pair, `before` and `after`, and reasons for gaps.

    There is one row for each repeat in which the two are comparable, of its newest match.
    """
    ok = runs[(runs["status"] == "ok") & (runs["resumptions"] == 0) & runs["comparable"]]
    before, after = (
        ok[(ok[_CONFIGURATION] == list(pair[side])).all(axis=1)] for side in ("before", "after")
    )
    pairs = newest_of_repeats(paired(after["measurement"], before["measurement"]))
    seconds = ok.set_index("file")[_SECONDS]
    sides = {"before": pairs.references, "after": pairs.runs}
    times = {
        side: seconds[[run["file"] for run in found]].to_numpy() for side, found in sides.items()
    }
    return pd.DataFrame(times, dtype=float).dropna(), pairs.refused


def _compared(
    runs: pd.DataFrame, pair: Mapping, times: pd.DataFrame, refused: Sequence[str]
) -> dict:
    before, after = times["before"], times["after"]
    return {
        "part": RUNG if pair["rung"] else DIRECT,
        "rung": pair["rung"],
        "change": pair["change"],
        **{side: _named(pair[side]) for side in ("before", "after")},
        "oversubscribed": bool(runs["oversubscribed"].any()),
        "pairs": len(times),
        "kind": "measured" if len(times) else "unavailable",
        "reason": left_out(len(times), refused) if len(times) else _reason(runs, refused),
        **ratio_interval(after / before).columns("ratio"),
        "before_seconds": before.median() if len(times) else None,
        "after_seconds": after.median() if len(times) else None,
        **difference_interval(before - after).columns("cost", "_seconds"),
    }


def _product(compared: list[dict], direct: dict, times: list[pd.DataFrame]) -> dict:
    """Return the product of the rungs, and its comparison with the ends.

    `times` are those of the rungs and, last, of the ends.
    """
    missing = [str(row["rung"]) for row in compared if not row["pairs"]]
    ratios = [each["after"] / each["before"] for each in times]
    ratio = combined_interval(ratios[:-1], np.prod, centre=geometric_pseudo_median)
    cost = combined_interval(
        [each["before"] - each["after"] for each in times[:-1]], np.sum, centre=pseudo_median
    )
    of_direct = combined_interval(
        ratios,
        lambda centres, axis: np.prod(centres[:-1], axis=axis) / centres[-1],
        centre=geometric_pseudo_median,
    )
    return {
        **{key: direct[key] for key in ("before", "after")},
        "part": PRODUCT,
        "rung": None,
        "change": None,
        "oversubscribed": any(row["oversubscribed"] for row in compared),
        "pairs": min(row["pairs"] for row in compared),
        "kind": "unavailable" if missing else "measured",
        "reason": f"no ratio of rung {', '.join(missing)}" if missing else None,
        **ratio.columns("ratio"),
        **cost.columns("cost", "_seconds"),
        **of_direct.columns("of_direct"),
    }


def _named(parts: Sequence[str]) -> str:
    return str(Configuration(*parts))


def _reason(runs: pd.DataFrame, refused: Sequence[str]) -> str:
    """Return why a pair has no ratio."""
    failed = runs[runs["current"] & (runs["status"] != "ok")]
    if failed.empty:
        none = "no two runs that ended ok and were not resumed share session and repeat"
        return "; ".join(dict.fromkeys(refused)) or none
    first = failed.iloc[0]
    why = f"{first['status']}: {first['reason']}" if pd.notna(first["reason"]) else first["status"]
    return f"{first['variant']} rep {first['repeat']}: {why}"
