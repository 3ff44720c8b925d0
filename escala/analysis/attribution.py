"""Split the time of a step into parts, by every rank's clocks and rank 0's timeline.

A step of a rank lasts from before its rows are gathered until it has returned. Each part is a set
of intervals between measured moments; none is computed as the rest. If parts overlap, the instant
counts once, for the first of them in the order of `PARTS`:

| part | from | to |
|---|---|---|
| input | gathering of the rows begins | it ends |
| dispatch | rows are gathered; all variables are updated | the compiled step begins; it returned |
| compute | the compiled step begins | the rank's last gradient is ready |
| optimiser | a gradient's sum over all ranks, or its factors, is ready | its variable is updated |
| skew | a gradient is ready on this rank | it is ready on the slowest rank |
| transfer, copies | Horovod begins to transfer or copy any tensor | it ends |
| transfer | a gradient without an operation of Horovod is ready on all ranks | it is exchanged |
| negotiation | a gradient is ready on all ranks | Horovod's operation on it begins |

The computation of a rank, and its wait for the slowest rank, come first. So an exchange counts only
where nothing else happens; the rest of it is overlap. Time that no part covers is unexplained.
Parts that compare moments with those of another rank, or with rank 0's timeline, need one clock.
They are unavailable for ranks under several kernels, that is on several machines.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from escala.probes import timeline
from escala.strategies.horovod import GRADIENT

#: Parts of a step; an instant counts for the first that covers it.
PARTS = (
    "input", "dispatch", "compute", "optimiser", "skew", "transfer", "copies", "negotiation",
)  # fmt: skip
EXCHANGE = ("transfer", "copies")
OVERLAP, UNEXPLAINED, WHOLE = "overlap", "unexplained", "whole"
CLOCKS, ALL_CLOCKS = "clocks of the rank", "clocks of all ranks"
TIMELINE, BOTH = "timeline of rank 0", "clocks of all ranks and timeline of rank 0"
SOURCES = {
    **dict.fromkeys(("input", "dispatch", "compute", "optimiser", WHOLE), CLOCKS),
    "skew": ALL_CLOCKS,
    **dict.fromkeys(EXCHANGE, TIMELINE),
    **dict.fromkeys(("negotiation", OVERLAP, UNEXPLAINED), BOTH),
}

_STEP = ["rank", "epoch", "step"]
_TENSOR = ["epoch", "step", "tensor"]
_PART_OF_FAMILY = {
    timeline.NEGOTIATION: "negotiation",
    timeline.WAITING: "negotiation",
    timeline.COPYING: "copies",
    timeline.COMMUNICATION: "transfer",
}

Intervals = np.ndarray


def run_attribution(run_file: Path, alone: bool, one_clock: bool) -> pd.DataFrame:
    """Return `summary` of a run that ended ok, from the files alongside its run.json.

    Parameters
    ----------
    alone : whether its strategy exchanges nothing.
    one_clock : whether all its processes read the same clock.

    Notes
    -----
    A process that holds several ranks has one record for all of them, under its own number.
    """
    clocks, phases = moments(run_file, one_clock)
    sources = {CLOCKS, *[ALL_CLOCKS] * one_clock, *[TIMELINE, BOTH] * (phases is not None)}
    return summary(per_step(clocks, phases), alone, sources)


def moments(run_file: Path, one_clock: bool) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Return the clocks and the phases of a run that ended ok, as `per_step` takes them."""
    # The moments of a whole step have no tensor; no variable's name is missing.
    clocks = [
        pd.read_csv(path, keep_default_na=False).assign(rank=int(re.search(r"\d+", path.name)[0]))
        for path in sorted(run_file.parent.glob("ranks/rank*.clocks.csv"))
    ]
    phases, path = None, run_file.with_name("timeline.json")
    if one_clock and path.exists():
        events = timeline.repair(path)
        phases = timeline.intervals(events)
        phases[["start_seconds", "end_seconds"]] += timeline.started(events)
    return pd.concat(clocks, ignore_index=True), phases


def covered(parts: Mapping[str, Intervals], begins: float, ends: float) -> dict[str, float]:
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
        ((each[:, :1] <= middles) & (middles < each[:, 1:])).any(axis=0) for each in parts.values()
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
    One row per rank, epoch and step, and a column for each of `PARTS`, `overlap`, `unexplained`
    and `whole`. Without moments inside the step there are only `input` and `whole`.
    """
    whole = _whole(clocks)
    steps = whole["returned"] - whole["gather_begins"]
    if "step_begins" not in whole:
        gathering = whole["gather_ends"] - whole["gather_begins"]
        return pd.DataFrame({"input": gathering, WHOLE: steps})
    rows = [covered(parts, *window) for parts, window in _parts(clocks, phases, whole)]
    return pd.DataFrame(rows, index=whole.index).assign(**{WHOLE: steps})


def typical_step(clocks: pd.DataFrame, phases: pd.DataFrame | None) -> pd.DataFrame:
    """Return the segments of the step of median duration, on all ranks.

    Of an even number of steps it is the shorter of the two in the middle. The duration is that from
    the first rank's begin to the last rank's end, so all ranks need one clock.

    Parameters
    ----------
    clocks, phases : as in `per_step`.

    Returns
    -------
    One row per segment: `epoch`, `step`, `rank`, `part` (one of `PARTS`, or `unexplained`),
    `start_seconds` and `end_seconds` since the first rank began the step. It is empty without
    moments inside the step.
    """
    whole = _whole(clocks)
    columns = ["epoch", "step", "rank", "part", "start_seconds", "end_seconds"]
    if "step_begins" not in whole:
        return pd.DataFrame(columns=columns)
    by_step = whole.groupby(["epoch", "step"])
    begins, ends = by_step["gather_begins"].min(), by_step["returned"].max()
    ordered = (ends - begins).sort_values(kind="stable").index
    epoch, step = ordered[(len(ordered) - 1) // 2]
    first = begins[epoch, step]
    typical = whole.xs((epoch, step), level=["epoch", "step"], drop_level=False)
    divided = zip(typical.index, _parts(clocks, phases, typical), strict=True)
    rows = [
        (epoch, step, rank, part, start - first, end - first)
        for (rank, *_), (parts, window) in divided
        for part, start, end in segments(parts, *window)
    ]
    return pd.DataFrame(rows, columns=columns)


def _whole(clocks: pd.DataFrame) -> pd.DataFrame:
    """Return the moments of whole steps: a row per rank, epoch and step, a column per moment."""
    return clocks[clocks["tensor"] == ""].pivot(index=_STEP, columns="moment", values="seconds")


def _parts(
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
        others = _without_library(step_tensors, phases)
        parts = {
            "input": moments[["gather_begins", "gather_ends"]].to_numpy()[None],
            "dispatch": np.array([[moments["gather_ends"], begins], [updated, ends]]),
            "compute": np.array([[begins, computed]]),
            "optimiser": step_tensors[["exchanged", "updated"]].to_numpy(),
            "skew": step_tensors[["gradient_ready", "all_ready"]].to_numpy(),
            **exchanges,
            "transfer": np.concatenate([exchanges["transfer"], others]),
        }
        yield {name: parts[name] for name in PARTS}, (moments["gather_begins"], ends)


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


def summary(steps: pd.DataFrame, alone: bool, sources: Collection[str]) -> pd.DataFrame:
    """Summarise the parts over the steps of each rank.

    Parameters
    ----------
    steps : the result of `per_step`.
    alone : whether nothing is exchanged, so that all parts of an exchange are 0.
    sources : the available ones of `SOURCES`. Only rank 0 writes the timeline: its values for the
        other ranks are estimated.

    Returns
    -------
    One row per rank and part: `rank`, `part`, `median_seconds`, `low_seconds` and `high_seconds`
    (quartiles), `fraction` (of the median step), `steps`, `source` and `kind`.
    """
    rows = []
    for rank, group in steps.groupby(level="rank"):
        for part in (*PARTS, OVERLAP, UNEXPLAINED, WHOLE):
            row = {"rank": rank, "part": part, "steps": len(group), "source": None}
            if part not in group or not (alone or SOURCES[part] in sources):
                rows.append(row | {"kind": "unavailable"})
                continue
            low, median, high = group[part].quantile([0.25, 0.5, 0.75])
            estimated = SOURCES[part] in (TIMELINE, BOTH) and rank != 0
            rows.append(
                row
                | {"median_seconds": median, "low_seconds": low, "high_seconds": high}
                | {"fraction": median / group[WHOLE].median()}
                | {"kind": "estimated" if estimated else "measured"}
                | {"source": CLOCKS if alone else SOURCES[part]}
            )
    return pd.DataFrame(rows)
