"""Invariants of a run, checked before its result counts."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pandas as pd

from escala.record.plan import shards
from escala.training.shards import row_moments, total_moments


def misplaced(plan: dict, processes: list[dict]) -> str | None:
    """Return the difference between requested and obtained hosts, cores or threads, or None."""
    for part in ("host", "cores"):
        asked, obtained = [place[part] for place in plan["places"]], [p[part] for p in processes]
        if asked != obtained:
            return f"requested the {part} {asked}, obtained {obtained}"
    threads = [p["threads"] for p in processes if p["threads"] != plan["knobs"]["threads"]]
    if threads:
        return f"requested the threads {plan['knobs']['threads']}, obtained {threads[0]}"
    return None


def broken_promise(
    plan: dict, ranks: list[dict], table: pd.DataFrame, test_rows: int
) -> str | None:
    """Return the violated invariant of a run, or None."""
    digests = {digest for r in ranks for digest in r["weights_sha256"]}
    if len(digests) > 1:
        return f"ranks hold {len(digests)} different sets of weights after training"
    if len({tuple(e["steps"] for e in r["epochs"]) for r in ranks}) > 1:
        return "ranks made different numbers of steps"
    for epoch, rows in table.groupby("epoch")["rows"].sum().items():
        expected = planned_rows(plan, ranks[0], epoch)
        trained = total_moments([r["epochs"][epoch - 1]["row_moments"] for r in ranks])
        if rows != len(expected) or trained != row_moments(expected):
            return f"in epoch {epoch} the ranks did not train on the rows of their shards"
    evaluated = sorted(tuple(r["evaluated"]) for r in ranks)
    covered = sorted(row for start, stop in evaluated for row in range(start, stop))
    if covered != list(range(test_rows)):
        return f"the evaluation covered the rows {evaluated} of {test_rows}"
    return None


def planned_rows(plan: dict, rank: dict, epoch: int) -> np.ndarray:
    """Return the rows that all ranks together train on in an epoch, int64 (rows,).

    A row that several ranks take is listed for each of them.

    Parameters
    ----------
    rank : the measurements of one rank, with the shares of all and the steps of each epoch.
    """
    if plan["kind"] == "fit":
        return np.arange(plan["train_rows"])
    of_epoch = shards(plan, rank["shares"]).of_epoch(epoch)
    steps = islice(of_epoch, rank["epochs"][epoch - 1]["steps"])
    return np.concatenate([rows for of_rank in steps for rows in of_rank])
