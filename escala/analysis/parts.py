"""Tell when each part of a step began and ended, by every rank's clocks and rank 0's timeline.

A step of a rank lasts from before its rows are gathered until it has returned. Each part is a set
of intervals between measured moments; none is computed as the rest. If parts overlap, the instant
counts once, for the first of them in the order of `PARTS`:

| part | from | to |
|---|---|---|
| input | gathering of the rows begins | it ends |
| dispatch | rows are gathered; all variables are updated | the step begins; it returned |
| compute | the step begins | the rank's last gradient is ready |
| optimiser | the last sum over all ranks, or its factors, is ready | the last variable is updated |
| skew | a gradient is ready on this rank | it is ready on the slowest rank |
| transfer, copies | Horovod begins to transfer or copy any tensor | it ends |
| transfer | a gradient without an operation of Horovod is ready on all ranks | it is exchanged |
| negotiation | a gradient is ready on all ranks | Horovod's operation on it begins |

The computation of a rank, and its wait for the slowest rank, come first. So an exchange counts only
where nothing else happens; the rest of it is overlap. Time that no part covers is unexplained.

PyTorch makes a step by several calls, and sums gradients by buckets. Every rank reads the moments
of its own buckets, so nothing is estimated:

| part | from | to |
|---|---|---|
| dispatch | besides: the backward pass has returned | the update begins |
| forward | the step begins | the losses of the rows are known |
| backward | that | the rank's last bucket is ready |
| optimiser | the update begins | it ends |
| transfer | a bucket is ready on all ranks | it is exchanged |
| copies | all buckets are exchanged | the backward pass has returned |

Forward and backward are then the two parts of compute.

*Off the core* is no interval: in the times in which a rank has work (`WORK`) it is what the rank
lost of its cores to others. These times are the gathering of rows, from there to the last gradient,
and from the last sum to the end of the step. Of each, it is the time that the rank's threads were
ready without running, but at most what is missing of the CPU time of its cores. Of all steps, it is
at most what is missing of that while the cores were not idle. So a rank that sleeps has lost
nothing, nor has one whose threads wait for each other. Each part of such a time loses as large a
fraction of itself: compute is then the time computing, and all parts still add up. It is an upper
bound. A wait for other ranks has none of it, because there a rank needs no core.

Parts that compare moments with those of another rank, or with rank 0's timeline, need one clock.
They are unavailable for ranks under several kernels, that is on several machines.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from escala.probes import timeline
from escala.probes.clocks import (
    BACKWARD_ENDS,
    COMPUTED,
    ENTERED,
    FORWARD_ENDS,
    GATHER_BEGINS,
    RETURNED,
    SAMPLED,
    SUMMED,
    UPDATE_BEGINS,
)
from escala.strategies.base import GRADIENT

#: Parts of a step; an instant counts for the first that covers it.
PARTS = (
    "input", "dispatch", "compute", "optimiser", "skew", "transfer", "copies", "negotiation",
)  # fmt: skip
EXCHANGE = ("transfer", "copies")
#: What compute is divided into where both are known.
PASSES = ("forward", "backward")
#: Parts in which a rank has work for its cores.
WORK = ("input", "dispatch", "compute", *PASSES, "optimiser")
_STEP = ["rank", "epoch", "step"]
_TENSOR = ["epoch", "step", "tensor"]
_PART_OF_FAMILY = {
    timeline.NEGOTIATION: "negotiation",
    timeline.WAITING: "negotiation",
    timeline.COPYING: "copies",
    timeline.COMMUNICATION: "transfer",
}

Intervals = np.ndarray


def whole_steps(clocks: pd.DataFrame) -> pd.DataFrame:
    """Return the moments of whole steps: a row per rank, epoch and step, a column per moment."""
    return clocks[clocks["tensor"] == ""].pivot(index=_STEP, columns="moment", values="seconds")


def parts_of_steps(
    clocks: pd.DataFrame, phases: pd.DataFrame | None, whole: pd.DataFrame
) -> Iterator[tuple[dict[str, Intervals], tuple[float, float]]]:
    """Yield the parts of each step of `whole` in the order of `PARTS`, and its begin and end."""
    tensors = clocks[clocks["tensor"] != ""].pivot(
        index=["rank", *_TENSOR], columns="moment", values="seconds"
    )
    slowest = tensors["gradient_ready"].groupby(_TENSOR).transform("max").rename("all_ready")
    tensors = tensors.join(slowest)
    exchanges = _exchanges(slowest, phases)
    for step, moments in whole.iterrows():
        step_tensors = tensors.loc[step]
        begins, ends = moments["step_begins"], moments["returned"]
        computed, updated = step_tensors["gradient_ready"].max(), step_tensors["updated"].max()
        parts = {
            "input": moments[["gather_begins", "gather_ends"]].to_numpy()[None],
            "dispatch": np.array([[moments["gather_ends"], begins], [updated, ends]]),
            "compute": np.array([[begins, computed]]),
            "optimiser": np.array([[step_tensors["exchanged"].max(), updated]]),
            "skew": step_tensors[["gradient_ready", "all_ready"]].to_numpy(),
            **exchanges,
        }
        if UPDATE_BEGINS in moments:
            parts |= _by_calls(parts, moments, step_tensors)
        else:
            others = _without_library(step_tensors, phases)
            parts["transfer"] = np.concatenate([exchanges["transfer"], others])
        names = PARTS if FORWARD_ENDS not in moments else (*PARTS[:2], *PASSES, *PARTS[3:])
        yield {name: parts[name] for name in names}, (moments["gather_begins"], ends)


def losses(clocks: pd.DataFrame) -> pd.DataFrame:
    """Return what ranks lost of their cores, in each of the three times of a step with work.

    Returns
    -------
    `begins`, `ends` and `lost_seconds`; three rows for each rank, epoch and step, its index. Steps
    without samples at all five moments are left out.
    """
    columns = ["seconds", *SAMPLED]
    sampled = clocks[clocks["tensor"] == ""].pivot(index=_STEP, columns="moment", values=columns)
    moments = GATHER_BEGINS, ENTERED, COMPUTED, SUMMED, RETURNED
    sampled = sampled.reindex(columns=pd.MultiIndex.from_product([columns, moments]))
    sampled = sampled[sampled["queue_seconds"].notna().all(axis=1)]
    whole, used, _, idle = (
        sampled[each, RETURNED] - sampled[each, GATHER_BEGINS] for each in columns
    )
    times = []
    for first, last in ((GATHER_BEGINS, ENTERED), (ENTERED, COMPUTED), (SUMMED, RETURNED)):
        seconds, on_core, queued, _ = (
            sampled[each, last] - sampled[each, first] for each in columns
        )
        lost = queued.clip(upper=seconds - on_core).clip(lower=0)
        begins, ends = sampled["seconds", first], sampled["seconds", last]
        times.append(pd.DataFrame({"begins": begins, "ends": ends, "lost_seconds": lost}))
    lost = pd.concat(times).sort_index()
    # A tick of a core is longer than many steps are, so the last bound is one of their sum.
    by_others = (whole - used - idle).groupby("rank").sum().clip(lower=0)
    total = lost["lost_seconds"].groupby("rank").sum()
    factor = (by_others / total).clip(upper=1).where(total > 0, 1.0)
    return lost.assign(
        lost_seconds=lost["lost_seconds"] * lost.index.get_level_values("rank").map(factor)
    )


def _by_calls(parts: dict, moments: pd.Series, buckets: pd.DataFrame) -> dict[str, Intervals]:
    """Return the parts that differ if a step is made by several calls."""
    [[begins, computed]] = parts["compute"]
    passed, returned, update = (
        moments.get(each) for each in (FORWARD_ENDS, BACKWARD_ENDS, UPDATE_BEGINS)
    )
    return {
        "dispatch": np.array([*parts["dispatch"], [returned, update]]),
        "forward": np.array([[begins, passed]]),
        "backward": np.array([[passed, computed]]),
        "optimiser": np.array([[update, buckets["updated"].max()]]),
        "transfer": buckets[["all_ready", "exchanged"]].to_numpy(),
        "copies": np.array([[buckets["exchanged"].max(), returned]]),
    }


def _exchanges(all_ready: pd.Series, phases: pd.DataFrame | None) -> dict[str, Intervals]:
    """Return the parts of all steps that need the timeline, empty ones without a timeline."""
    if phases is None:
        return dict.fromkeys((*EXCHANGE, "negotiation"), np.empty((0, 2)))
    parts = phases["phase"].map(timeline.family).map(_PART_OF_FAMILY)
    found = {
        name: phases.loc[parts == name, ["start_seconds", "end_seconds"]].to_numpy()
        for name in (*EXCHANGE, "negotiation")
    }
    operations = phases[(phases["depth"] == 0) & (parts != "negotiation")]
    awaited = pd.merge_asof(
        all_ready.reset_index().sort_values("all_ready"),
        operations.assign(tensor=operations["tensor"].str.removeprefix(GRADIENT)),
        left_on="all_ready",
        right_on="start_seconds",
        by="tensor",
        direction="forward",
    ).dropna(subset="start_seconds")
    waits = awaited[["all_ready", "start_seconds"]].to_numpy()
    return found | {"negotiation": np.concatenate([found["negotiation"], waits])}


def _without_library(tensors: pd.DataFrame, phases: pd.DataFrame | None) -> Intervals:
    """Return the exchanges of a step of a rank that have no operation in the timeline.

    For example, those through shared memory. They begin when all of these gradients are ready.
    Without a timeline, nothing is known of exchanges.
    """
    if phases is None:
        return np.empty((0, 2))
    library_gradients = phases["tensor"].str.removeprefix(GRADIENT).unique()
    others = tensors[~tensors.index.get_level_values("tensor").isin(library_gradients)]
    return others.assign(begin=others["all_ready"].max())[["begin", "exchanged"]].to_numpy()
