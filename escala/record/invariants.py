"""Invariants of a run, checked before its result counts."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import pandas as pd

from escala.runtime.allocation import same_host
from escala.training.plan import Plan
from escala.training.shards import Shards, row_moments, total_moments


class Planned(NamedTuple):
    """The rows that all ranks together train on in an epoch.

    Attributes
    ----------
    rows : their number; a row that several ranks take counts for each of them.
    distinct : the number of different ones among them.
    moments : their `row_moments`.
    """

    rows: int
    distinct: int
    moments: list[int]


def misplaced(plan: Plan, processes: list[dict]) -> str | None:
    """Return the difference between requested and obtained hosts, cores or threads, or None."""
    for part, agree in (("host", same_host), ("cores", operator.eq)):
        asked, obtained = [place[part] for place in plan["places"]], [p[part] for p in processes]
        if len(asked) != len(obtained) or not all(map(agree, asked, obtained)):
            return f"requested the {part} {asked}, obtained {obtained}"
    threads = [p["threads"] for p in processes if p["threads"] != plan["knobs"]["threads"]]
    if threads:
        return f"requested the threads {plan['knobs']['threads']}, obtained {threads[0]}"
    return None


def broken_promise(
    planned: Sequence[Planned],
    ranks: list[dict],
    table: pd.DataFrame,
    test_rows: int,
    alike: bool = True,
) -> str | None:
    """Return the violated invariant of a run, or None.

    Parameters
    ----------
    planned : of each epoch.
    ranks : the measurements of each rank.
    table : the steps of all ranks.
    test_rows : of the split.
    alike : whether the ranks exchange, and so hold the same weights.
    """
    digests = {digest for r in ranks for digest in r["weights_sha256"]}
    if alike and len(digests) > 1:
        return f"ranks hold {len(digests)} different sets of weights after training"
    if len({tuple(e["steps"] for e in r["epochs"]) for r in ranks}) > 1:
        return "ranks made different numbers of steps"
    for epoch, rows in table.groupby("epoch")["rows"].sum().items():
        expected = planned[epoch - 1]
        trained = total_moments([r["epochs"][epoch - 1]["row_moments"] for r in ranks])
        if (rows, trained) != (expected.rows, expected.moments):
            return f"in epoch {epoch} the ranks did not train on the rows of their shards"
    evaluated = sorted(tuple(r["evaluated"]) for r in ranks)
    covered = sorted(row for start, stop in evaluated for row in range(start, stop))
    if covered != list(range(test_rows)):
        return f"the evaluation covered the rows {evaluated} of {test_rows}"
    return None


def planned_epochs(plan: Plan, rank: dict) -> list[Planned]:
    """Return what the plan gives the ranks to train on in each epoch.

    Parameters
    ----------
    rank : the measurements of one rank, with the fractions of all and the steps of each epoch.
    """
    found = []
    for number, epoch in enumerate(rank["epochs"], start=1):
        rows = _planned_rows(plan, rank["fractions"], number, epoch["steps"])
        found.append(Planned(len(rows), len(np.unique(rows)), row_moments(rows)))
    return found


def _planned_rows(plan: Plan, fractions: Sequence[float], epoch: int, steps: int) -> np.ndarray:
    """Return the rows of an epoch, int64 (rows,); one that several ranks take is repeated."""
    planned = islice(Shards.planned(plan, fractions).epoch_batches(epoch), steps)
    return np.concatenate([rows for ranks in planned for rows in ranks])
