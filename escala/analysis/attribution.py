"""Divide the time of a step among its parts, by every rank's clocks and rank 0's timeline.

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

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from escala.probes import timeline
from escala.probes.clocks import (
    BACKWARD_ENDS,
    COLUMNS,
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
OVERLAP, UNEXPLAINED, WHOLE = "overlap", "unexplained", "whole"
OFF_CORE = "off the core"
CLOCKS, ALL_CLOCKS = "clocks of the rank", "clocks of all ranks"
TIMELINE, BOTH = "timeline of rank 0", "clocks of all ranks and timeline of rank 0"
SOURCES = {
    **dict.fromkeys(("input", "dispatch", "compute", "optimiser", OFF_CORE, WHOLE), CLOCKS),
    "skew": ALL_CLOCKS,
    **dict.fromkeys(EXCHANGE, TIMELINE),
    **dict.fromkeys(("negotiation", OVERLAP, UNEXPLAINED), BOTH),
}
#: The same of steps whose ranks read the moments of their own buckets.
BUCKET_SOURCES = {
    part: ALL_CLOCKS if source in (TIMELINE, BOTH) else source for part, source in SOURCES.items()
} | dict.fromkeys(PASSES, CLOCKS)


def run_attribution(run_file: Path, alone: bool, one_clock: bool) -> pd.DataFrame:
    """Return `summary` of a run that has `clocks_files`.

    Parameters
    ----------
    alone : whether its strategy exchanges nothing.
    one_clock : whether all its processes read the same clock.

    Notes
    -----
    A process that holds several ranks has one record for all of them, under its own number.
    """
    clocks, phases = moments(run_file, one_clock)
    known = {CLOCKS, *[ALL_CLOCKS] * one_clock, *[TIMELINE, BOTH] * (phases is not None)}
    sources = {part: source for part, source in _sources(clocks).items() if source in known}
    return summary(per_step(clocks, phases), alone, sources)


def _sources(clocks: pd.DataFrame) -> dict[str, str]:
    """Return the source of each part, by what was recorded."""
    return BUCKET_SOURCES if (clocks["moment"] == UPDATE_BEGINS).any() else SOURCES


def clocks_files(run_file: Path) -> list[Path]:
    """Return the clocks of each process of a run, from the files alongside its run.json."""
    return sorted(run_file.parent.glob("ranks/rank*.clocks.csv"))


def moments(run_file: Path, one_clock: bool) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Return the clocks and the phases of a run that has `clocks_files`, for `per_step`."""
    # The moments of a whole step have no tensor; no variable's name is missing.
    unsampled = {moment: [""] for moment in SAMPLED}
    clocks = [
        pd.read_csv(path, keep_default_na=False, na_values=unsampled).assign(
            rank=int(re.search(r"\d+", path.name)[0])
        )
        for path in clocks_files(run_file)
    ]
    phases, path = None, run_file.with_name("timeline.json")
    if one_clock and path.exists():
        events = timeline.read_events(path)
        phases = timeline.intervals(events)
        phases[["start_seconds", "end_seconds"]] += timeline.start_seconds(events)
    return pd.concat(clocks, ignore_index=True).reindex(columns=[*COLUMNS, "rank"]), phases


def seconds_within(parts: Mapping[str, Intervals], begins: float, ends: float) -> dict[str, float]:
    """Divide the time between two moments among parts that may overlap.

    Parameters
    ----------
    parts : intervals of each part, of shape (number, 2), in any order. The parts are in order of
        precedence.

    Returns
    -------
    Seconds that each part covers and no part before it covers, under its name; as `overlap` the
    seconds of the parts `EXCHANGE` that other parts cover; as `unexplained` those that no part
    covers.
    """
    cuts, covers = _cut(parts, begins, ends)
    seconds, taken = np.diff(cuts), np.cumsum(covers, axis=0)
    alone = dict(zip(parts, (covers & (taken == 1)) @ seconds, strict=True))
    exchanging = covers[[name in EXCHANGE for name in parts]].any(axis=0)
    exchanged = sum(alone[name] for name in EXCHANGE if name in parts)
    return alone | {
        OVERLAP: exchanging @ seconds - exchanged,
        UNEXPLAINED: (taken[-1] == 0) @ seconds,
    }


def segments(
    parts: Mapping[str, Intervals], begins: float, ends: float
) -> list[tuple[str, float, float]]:
    """Divide the time between two moments into segments, as `covered` does.

    Returns
    -------
    Part (`unexplained` if none covers it), begin and end of each, in order and without gaps.
    Neighbours differ in their part.
    """
    cuts, covers = _cut(parts, begins, ends)
    names = np.array([*parts, UNEXPLAINED])
    first = np.argmax(np.vstack([covers, np.ones(len(cuts) - 1, bool)]), axis=0)
    starts = np.flatnonzero(np.diff(first, prepend=-1))
    bounds = np.append(cuts[starts], cuts[-1]).tolist()
    return list(zip(names[first[starts]].tolist(), bounds[:-1], bounds[1:], strict=True))


def _cut(
    parts: Mapping[str, Intervals], begins: float, ends: float
) -> tuple[np.ndarray, np.ndarray]:
    """Cut the time between two moments wherever a part begins or ends.

    Returns
    -------
    The cuts, of shape (number + 1,), and whether each part covers what lies between two of them, of
    shape (parts, number).
    """
    cuts = np.unique(np.clip(np.concatenate([*parts.values(), [[begins, ends]]]), begins, ends))
    middles = (cuts[1:] + cuts[:-1]) / 2
    covers = [
        ((intervals[:, :1] <= middles) & (middles < intervals[:, 1:])).any(axis=0)
        for intervals in parts.values()
    ]
    return cuts, np.array(covers)


def per_step(clocks: pd.DataFrame, phases: pd.DataFrame | None) -> pd.DataFrame:
    """Return the seconds of every part, of every step of every rank.

    Parameters
    ----------
    clocks : the moments of all ranks, with the columns of `rank{r}.clocks.csv` and `rank`.
    phases : phases of Horovod's timeline, in seconds since the epoch; None without a timeline.

    Returns
    -------
    One row per rank, epoch and step, and a column for each of `PARTS`, `off the core`, `overlap`,
    `unexplained` and `whole`, and of `PASSES` where they are known. Off the core is NaN, and still
    within the other parts, where the rank was not sampled. Without moments inside the step there
    are only `input` and `whole`.
    """
    whole = whole_steps(clocks)
    steps = whole["returned"] - whole["gather_begins"]
    if "step_begins" not in whole:
        gathering = whole["gather_ends"] - whole["gather_begins"]
        return pd.DataFrame({"input": gathering, WHOLE: steps})
    lost = losses(clocks)
    rows = []
    for step, (parts, window) in zip(
        whole.index, parts_of_steps(clocks, phases, whole), strict=True
    ):
        row = seconds_within(parts, *window) | {OFF_CORE: np.nan}
        if step in lost.index:
            # What was lost of the cores is taken out of the parts `WORK`.
            row[OFF_CORE] = 0.0
            for begins, ends, lost_seconds in lost.loc[[step]].itertuples(index=False):
                within = seconds_within(parts, begins, ends)
                work = {name: within[name] for name in WORK if name in within}
                fraction = min(1.0, lost_seconds / max(sum(work.values()), 1e-9))
                for name, seconds in work.items():
                    row[name] -= fraction * seconds
                    row[OFF_CORE] += fraction * seconds
        rows.append(row)
    parts = pd.DataFrame(rows, index=whole.index)
    if FORWARD_ENDS in whole:
        parts["compute"] = parts[[*PASSES]].sum(axis=1)
    return parts.assign(**{WHOLE: steps})


def typical_step(clocks: pd.DataFrame, phases: pd.DataFrame | None) -> pd.DataFrame:
    """Return the segments of the step of median duration, on all ranks.

    Of an even number of steps it is the shorter of the two in the middle. The duration is that from
    the first rank's begin to the last rank's end, so all ranks need one clock.

    Parameters
    ----------
    clocks, phases : as in `per_step`.

    Returns
    -------
    One row per segment: `epoch`, `step`, `rank`, `part` (one of `PARTS`, or `unexplained`; in place
    of compute `PASSES` where they are known), `start_seconds` and `end_seconds` since the first
    rank began the step, and `kind`. It is empty without moments inside the step.
    """
    whole, sources = whole_steps(clocks), _sources(clocks)
    columns = ["epoch", "step", "rank", "part", "start_seconds", "end_seconds", "kind"]
    if "step_begins" not in whole:
        return pd.DataFrame(columns=columns)
    by_step = whole.groupby(["epoch", "step"])
    begins, ends = by_step["gather_begins"].min(), by_step["returned"].max()
    ordered = (ends - begins).sort_values(kind="stable").index
    epoch, step = ordered[(len(ordered) - 1) // 2]
    first = begins[epoch, step]
    typical = whole.xs((epoch, step), level=["epoch", "step"], drop_level=False)
    divided = zip(typical.index, parts_of_steps(clocks, phases, typical), strict=True)
    rows = [
        (epoch, step, rank, part, start - first, end - first, _kind(rank, sources.get(part)))
        for (rank, *_), (parts, window) in divided
        for part, start, end in segments(parts, *window)
    ]
    return pd.DataFrame(rows, columns=columns)


def summary(steps: pd.DataFrame, alone: bool, sources: Mapping[str, str]) -> pd.DataFrame:
    """Summarise the parts over the steps of each rank of one run.

    Parameters
    ----------
    steps : the result of `per_step`. Where a rank was sampled in some steps, these count alone.
    alone : whether nothing is exchanged, so that all parts of an exchange are 0.
    sources : of each part that is available. Only rank 0 writes the timeline: its values for the
        other ranks are estimated.

    Returns
    -------
    One row per rank and part: `rank`, `part`, `seconds` (mean over steps, so the parts add up to
    the whole), `steps`, `source` and `kind`.
    """
    rows = []
    passes = [part for part in PASSES if part in steps]
    for rank, group in steps.groupby(level="rank"):
        if OFF_CORE in group and group[OFF_CORE].notna().any():
            group = group.dropna(subset=OFF_CORE)
        for part in (*PARTS, *passes, OFF_CORE, OVERLAP, UNEXPLAINED, WHOLE):
            row = {"rank": rank, "part": part, "steps": len(group), "source": None}
            known = part in group and group[part].notna().all()
            if not known or not (alone or part in sources):
                rows.append(row | {"kind": "unavailable"})
                continue
            rows.append(
                row
                | {"seconds": group[part].mean(), "kind": _kind(rank, sources.get(part))}
                | {"source": CLOCKS if alone else sources[part]}
            )
    return pd.DataFrame(rows)


def _kind(rank: int, source: str | None) -> str:
    return "estimated" if source in (TIMELINE, BOTH) and rank != 0 else "measured"


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
    library_gradients = []
    if phases is not None:
        library_gradients = phases["tensor"].str.removeprefix(GRADIENT).unique()
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
        ready = step_tensors["all_ready"]
        if UPDATE_BEGINS in moments:
            # The step is made by several calls.
            passed, backward, update = (
                moments.get(moment) for moment in (FORWARD_ENDS, BACKWARD_ENDS, UPDATE_BEGINS)
            )
            parts |= {
                "dispatch": np.array([*parts["dispatch"], [backward, update]]),
                "forward": np.array([[begins, passed]]),
                "backward": np.array([[passed, computed]]),
                "optimiser": np.array([[update, updated]]),
                "transfer": np.column_stack([ready, step_tensors["exchanged"]]),
                "copies": np.array([[step_tensors["exchanged"].max(), backward]]),
            }
        elif phases is not None:
            # Exchanges without an operation of Horovod, such as those through shared memory, begin
            # when all of these gradients are ready. Without a timeline, nothing is known of them.
            is_other = ~step_tensors.index.isin(library_gradients)
            exchanged = step_tensors["exchanged"][is_other]
            begun = np.full(len(exchanged), ready[is_other].max())
            others = np.column_stack([begun, exchanged])
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
        sampled[column, RETURNED] - sampled[column, GATHER_BEGINS] for column in columns
    )
    times = []
    for first, last in ((GATHER_BEGINS, ENTERED), (ENTERED, COMPUTED), (SUMMED, RETURNED)):
        seconds, on_core, queued, _ = (
            sampled[column, last] - sampled[column, first] for column in columns
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


def _exchanges(all_ready: pd.Series, phases: pd.DataFrame | None) -> dict[str, Intervals]:
    """Return the parts of all steps that need the timeline, empty ones without a timeline."""
    if phases is None:
        return dict.fromkeys((*EXCHANGE, "negotiation"), np.empty((0, 2)))
    parts = phases["phase"].map(timeline.family).map(_PART_OF_FAMILY)
    phases_of_parts = {
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
    return phases_of_parts | {
        "negotiation": np.concatenate([phases_of_parts["negotiation"], waits])
    }
