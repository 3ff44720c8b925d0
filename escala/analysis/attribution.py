"""Divide the time of a step among its parts, by every rank's clocks and rank 0's timeline.

A step of a rank lasts from before its rows are gathered until the step has returned. Each part is a
set of intervals between measured moments. No part is computed as the rest. If parts overlap at an
instant, the instant counts once, for the first of these parts in the order of `PARTS`:

| part | from | to |
|---|---|---|
| input | gathering of the rows begins | gathering ends |
| dispatch | rows are gathered; all variables are updated | the step begins; the step returned |
| compute | the step begins | the rank's last gradient is ready |
| optimiser | the last sum over all ranks, or its factors, is ready | the last variable is updated |
| skew | a gradient is ready on this rank | the gradient is ready on the slowest rank |
| transfer, copies | Horovod begins to transfer or copy any tensor | the transfer or copy ends |
| transfer | a gradient without a Horovod operation is ready on all ranks | it is exchanged |
| negotiation | a gradient is ready on all ranks | Horovod's operation on it begins |

The computation of a rank, and its wait for the slowest rank, come first. So an exchange counts only
where nothing else happens. The rest of the exchange is overlap. Time that no part covers is
unexplained.

PyTorch makes a step by several calls, and sums gradients by buckets. Every rank reads the moments
of its own buckets, so nothing is estimated. These parts differ:

| part | from | to |
|---|---|---|
| dispatch, in addition | the backward pass has returned | the update begins |
| forward | the step begins | the losses of the rows are known |
| backward | the losses of the rows are known | the rank's last bucket is ready |
| optimiser | the update begins | the update ends |
| transfer | a bucket is ready on all ranks | the bucket is exchanged |
| copies | all buckets are exchanged | the backward pass has returned |

Forward and backward are the two parts of compute.

*Off the core* is no interval. A rank loses time of its cores to other processes while it has work
(`WORK`); this time is off the core. A step has three spans with work: the gathering of rows, the
span from there to the last gradient, and the span from the last sum to the end. The loss of a span
is the time in which threads of the rank were ready without running. The loss is at most the
duration of the span less the CPU time of the rank's cores. The loss of all spans of a run is at
most the time in which the cores were neither idle nor used by the rank. So a rank that sleeps loses
nothing, and neither does a rank whose threads wait for each other. All parts of a span lose the
same fraction of their seconds, so all parts still add up. The result is an upper bound. A wait for
other ranks loses nothing, because a rank needs no core to wait.

Parts that compare moments with those of another rank, or with rank 0's timeline, need one clock.
These parts are unavailable for ranks under several kernels, that is on several machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from escala.analysis.intervals import cover_in_order, covered_between, join
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

#: Parts of a step. An instant counts for the first part that covers it.
PARTS = (
    "input", "dispatch", "compute", "optimiser", "skew", "transfer", "copies", "negotiation",
)  # fmt: skip
EXCHANGE = ("transfer", "copies")
#: The two parts of compute, if both are known.
PASSES = ("forward", "backward")
#: Parts in which a rank has work for its cores.
WORK = ("input", "dispatch", "compute", *PASSES, "optimiser")
#: Columns that name a step of a rank, and a tensor of a step.
_STEP = ["rank", "epoch", "step"]
_TENSOR = ["epoch", "step", "tensor"]
#: Part of a step by the family of a phase of the timeline.
_PART_OF_FAMILY = {
    timeline.NEGOTIATION: "negotiation",
    timeline.WAITING: "negotiation",
    timeline.COPYING: "copies",
    timeline.COMMUNICATION: "transfer",
}

#: Begins and ends, of shape (number, 2).
Intervals = np.ndarray
OVERLAP, UNEXPLAINED, WHOLE = "overlap", "unexplained", "whole"
OFF_CORE = "off the core"
#: The sources from which the seconds of a part are measured.
CLOCKS, ALL_CLOCKS = "clocks of the rank", "clocks of all ranks"
TIMELINE, BOTH = "timeline of rank 0", "clocks of all ranks and timeline of rank 0"
SOURCES = {
    **dict.fromkeys(("input", "dispatch", "compute", "optimiser", OFF_CORE, WHOLE), CLOCKS),
    "skew": ALL_CLOCKS,
    **dict.fromkeys(EXCHANGE, TIMELINE),
    **dict.fromkeys(("negotiation", OVERLAP, UNEXPLAINED), BOTH),
}
#: Sources of the parts of steps whose ranks read the moments of their own buckets.
BUCKET_SOURCES = {
    part: ALL_CLOCKS if source in (TIMELINE, BOTH) else source for part, source in SOURCES.items()
} | dict.fromkeys(PASSES, CLOCKS)


def run_attribution(run_file: Path, alone: bool, one_clock: bool) -> pd.DataFrame:
    """Return the `summary` of the parts of a run that has `clocks_files`.

    Parameters
    ----------
    alone : whether the run's strategy exchanges nothing.
    one_clock : whether all processes of the run read the same clock.

    Notes
    -----
    A process that holds several ranks has one record for all of them, under its own number.
    """
    clocks, phases = moments(run_file, one_clock)
    available = {CLOCKS}
    if one_clock:
        available.add(ALL_CLOCKS)
    if phases is not None:
        available |= {TIMELINE, BOTH}
    sources = {part: source for part, source in _sources(clocks).items() if source in available}
    return summary(per_step(clocks, phases), alone, sources)


def _sources(clocks: pd.DataFrame) -> dict[str, str]:
    """Return the source of each part. Sources depend on the recorded moments."""
    return BUCKET_SOURCES if (clocks["moment"] == UPDATE_BEGINS).any() else SOURCES


def clocks_files(run_file: Path) -> list[Path]:
    """Return the file of the clocks of each process of a run, alongside its run.json."""
    return sorted(run_file.parent.glob("ranks/rank*.clocks.csv"))


def moments(run_file: Path, one_clock: bool) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Return the clocks and the phases of a run that has `clocks_files`, for `per_step`."""
    # The moments of a whole step have no tensor. All other moments have one.
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
    By the name of each part, the seconds that this part covers and no earlier part covers.
    `overlap` are the seconds of the parts `EXCHANGE` that other parts cover. `unexplained` are the
    seconds that no part covers.
    """

    def one(seconds: np.ndarray) -> float:
        return float(seconds[0])

    begin, end = np.array([begins]), np.array([ends])
    seconds_of = {name: one(seconds) for name, seconds in cover_in_order(parts, begin, end).items()}
    exchange = [parts[name] for name in EXCHANGE if name in parts]
    exchanged = covered_between(begin, end, join(np.concatenate([np.empty((0, 2)), *exchange])))
    exposed = sum(seconds_of[name] for name in EXCHANGE if name in parts)
    return seconds_of | {
        OVERLAP: one(exchanged) - exposed,
        UNEXPLAINED: ends - begins - sum(seconds_of.values()),
    }


def segments(
    parts: Mapping[str, Intervals], begins: float, ends: float
) -> list[tuple[str, float, float]]:
    """Divide the time between two moments into segments; arguments are as in `seconds_within`.

    Returns
    -------
    Part, begin and end of each segment, in order and without gaps. A segment that no part covers is
    `unexplained`. Neighbours differ in their part.
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
    The cuts, of shape (pieces + 1,), and whether each part covers each piece between two cuts, of
    shape (parts, pieces).
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
    `unexplained` and `whole`. Where `PASSES` are known, they have columns, too. If the rank was not
    sampled in a step, `off the core` is NaN, and the other parts contain this time. Without moments
    inside the step there are only `input` and `whole`.
    """
    whole = whole_steps(clocks)
    durations = whole["returned"] - whole["gather_begins"]
    if "step_begins" not in whole:
        gathering = whole["gather_ends"] - whole["gather_begins"]
        return pd.DataFrame({"input": gathering, WHOLE: durations})
    lost = losses(clocks)
    rows = []
    for step, (parts, window) in zip(
        whole.index, parts_of_steps(clocks, phases, whole), strict=True
    ):
        row = seconds_within(parts, *window) | {OFF_CORE: np.nan}
        if step in lost.index:
            # The time lost in each span with work is taken out of its parts.
            row[OFF_CORE] = 0.0
            for begins, ends, lost_seconds in lost.loc[[step]].itertuples(index=False):
                in_span = seconds_within(parts, begins, ends)
                work = {name: in_span[name] for name in WORK if name in in_span}
                fraction = min(1.0, lost_seconds / max(sum(work.values()), 1e-9))
                for name, seconds in work.items():
                    row[name] -= fraction * seconds
                    row[OFF_CORE] += fraction * seconds
        rows.append(row)
    table = pd.DataFrame(rows, index=whole.index)
    if FORWARD_ENDS in whole:
        table["compute"] = table[[*PASSES]].sum(axis=1)
    return table.assign(**{WHOLE: durations})


def typical_step(clocks: pd.DataFrame, phases: pd.DataFrame | None) -> pd.DataFrame:
    """Return the segments of the step of median duration, on all ranks.

    A step lasts from the first rank's begin to the last rank's end, so all ranks need one clock. If
    the number of steps is even, the shorter of the two steps in the middle is taken.

    Parameters
    ----------
    clocks, phases : as in `per_step`.

    Returns
    -------
    One row per segment: `epoch`, `step`, `rank`, `part` (one of `PARTS`, or `unexplained`; in place
    of compute `PASSES` where they are known), `start_seconds` and `end_seconds` since the first
    rank began the step, and `kind` (`measured` or `estimated`). The table is empty without moments
    inside the step.
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
    ranks = typical.index.get_level_values("rank")
    rows = [
        (epoch, step, rank, part, start - first, end - first, _kind(rank, sources.get(part)))
        for rank, (parts, window) in zip(
            ranks, parts_of_steps(clocks, phases, typical), strict=True
        )
        for part, start, end in segments(parts, *window)
    ]
    return pd.DataFrame(rows, columns=columns)


def summary(steps: pd.DataFrame, alone: bool, sources: Mapping[str, str]) -> pd.DataFrame:
    """Summarise the parts over the steps of each rank of one run.

    Parameters
    ----------
    steps : the result of `per_step`. If a rank was sampled in some steps, only these steps count.
    alone : whether nothing is exchanged, so that all parts of an exchange are 0.
    sources : the source of each available part. Only rank 0 writes the timeline, so parts from the
        timeline are estimated for the other ranks.

    Returns
    -------
    One row per rank and part: `rank`, `part`, `seconds` (mean over steps, so the parts add up to
    the whole), `steps` (their number), `source`, and `kind` (`measured`, `estimated` or
    `unavailable`).
    """
    rows = []
    passes = [part for part in PASSES if part in steps]
    for rank, group in steps.groupby(level="rank"):
        if OFF_CORE in group and group[OFF_CORE].notna().any():
            group = group.dropna(subset=OFF_CORE)
        for part in (*PARTS, *passes, OFF_CORE, OVERLAP, UNEXPLAINED, WHOLE):
            row = {"rank": rank, "part": part, "steps": len(group), "source": None}
            has_seconds = part in group and group[part].notna().all()
            if not has_seconds or not (alone or part in sources):
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
    """Yield the intervals of the parts of each step, in the order of `PARTS`, with its window.

    The window of a step is its begin and end. Parameters are as in `per_step`. `whole` is what
    `whole_steps` returns.
    """
    tensors = clocks[clocks["tensor"] != ""].pivot(
        index=["rank", *_TENSOR], columns="moment", values="seconds"
    )
    slowest = tensors["gradient_ready"].groupby(_TENSOR).transform("max").rename("all_ready")
    tensors = tensors.join(slowest)
    exchanges = _timeline_parts(slowest, phases)
    gradients_of_timeline = []
    if phases is not None:
        gradients_of_timeline = phases["tensor"].str.removeprefix(GRADIENT).unique()
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
            # Several calls make the step.
            forward_ends, backward_ends, update_begins = (
                moments.get(moment) for moment in (FORWARD_ENDS, BACKWARD_ENDS, UPDATE_BEGINS)
            )
            parts |= {
                "dispatch": np.array([*parts["dispatch"], [backward_ends, update_begins]]),
                "forward": np.array([[begins, forward_ends]]),
                "backward": np.array([[forward_ends, computed]]),
                "optimiser": np.array([[update_begins, updated]]),
                "transfer": np.column_stack([ready, step_tensors["exchanged"]]),
                "copies": np.array([[step_tensors["exchanged"].max(), backward_ends]]),
            }
        elif phases is not None:
            # Exchanges without an operation of Horovod, such as those through shared memory, begin
            # when all gradients of the exchange are ready. Without a timeline, these exchanges are
            # unknown.
            is_outside = ~step_tensors.index.isin(gradients_of_timeline)
            exchange_ends = step_tensors["exchanged"][is_outside]
            exchange_begins = np.full(len(exchange_ends), ready[is_outside].max())
            outside = np.column_stack([exchange_begins, exchange_ends])
            parts["transfer"] = np.concatenate([exchanges["transfer"], outside])
        names = PARTS if FORWARD_ENDS not in moments else (*PARTS[:2], *PASSES, *PARTS[3:])
        yield {name: parts[name] for name in names}, (moments["gather_begins"], ends)


def losses(clocks: pd.DataFrame) -> pd.DataFrame:
    """Return the core time that ranks lost in the three spans of a step that have work.

    Returns
    -------
    `begins`, `ends` and `lost_seconds` of each span, by rank, epoch and step. Steps without samples
    at all five moments are left out.
    """
    columns = ["seconds", *SAMPLED]
    sampled = clocks[clocks["tensor"] == ""].pivot(index=_STEP, columns="moment", values=columns)
    moments = GATHER_BEGINS, ENTERED, COMPUTED, SUMMED, RETURNED
    sampled = sampled.reindex(columns=pd.MultiIndex.from_product([columns, moments]))
    sampled = sampled[sampled["queue_seconds"].notna().all(axis=1)]
    elapsed, used, _, idle = (
        sampled[column, RETURNED] - sampled[column, GATHER_BEGINS] for column in columns
    )
    spans = []
    for first, last in ((GATHER_BEGINS, ENTERED), (ENTERED, COMPUTED), (SUMMED, RETURNED)):
        seconds, on_core, queued, _ = (
            sampled[column, last] - sampled[column, first] for column in columns
        )
        lost = queued.clip(upper=seconds - on_core).clip(lower=0)
        begins, ends = sampled["seconds", first], sampled["seconds", last]
        spans.append(pd.DataFrame({"begins": begins, "ends": ends, "lost_seconds": lost}))
    lost = pd.concat(spans).sort_index()
    # The last bound is on the sum over all steps: the kernel counts idle time in ticks, and a tick
    # may be longer than a step.
    used_by_others = (elapsed - used - idle).groupby("rank").sum().clip(lower=0)
    total = lost["lost_seconds"].groupby("rank").sum()
    factor = (used_by_others / total).clip(upper=1).where(total > 0, 1.0)
    return lost.assign(
        lost_seconds=lost["lost_seconds"] * lost.index.get_level_values("rank").map(factor)
    )


def _timeline_parts(all_ready: pd.Series, phases: pd.DataFrame | None) -> dict[str, Intervals]:
    """Return the intervals, over all steps, of the parts that the timeline records.

    The intervals are empty without a timeline. `all_ready` is when each tensor of a step is ready
    on all ranks.
    """
    if phases is None:
        return dict.fromkeys((*EXCHANGE, "negotiation"), np.empty((0, 2)))
    parts = phases["phase"].map(timeline.family).map(_PART_OF_FAMILY)
    phases_of_parts = {
        name: phases.loc[parts == name, ["start_seconds", "end_seconds"]].to_numpy()
        for name in (*EXCHANGE, "negotiation")
    }
    operations = phases[(phases["depth"] == 0) & (parts != "negotiation")]
    # A tensor waits from the moment when it is ready to the next operation on this tensor.
    next_operations = pd.merge_asof(
        all_ready.reset_index().sort_values("all_ready"),
        operations.assign(tensor=operations["tensor"].str.removeprefix(GRADIENT)),
        left_on="all_ready",
        right_on="start_seconds",
        by="tensor",
        direction="forward",
    ).dropna(subset="start_seconds")
    waits = next_operations[["all_ready", "start_seconds"]].to_numpy()
    return phases_of_parts | {
        "negotiation": np.concatenate([phases_of_parts["negotiation"], waits])
    }
