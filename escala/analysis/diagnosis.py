"""Diagnose training from a Horovod timeline, also of a run that knows nothing of Escala.

A tensor that is exchanged once a step occurs once in each, so the n-th operation on it belongs to
step n, which ends with the last of them. The first step holds the start, and is left out.

Rank 0 writes the timeline. A negotiation begins with the request of the first rank. Readiness ticks
say when each rank was ready; with its response cache, Horovod writes them for the first negotiation
on a tensor only. Its background thread sees a request at its next cycle, after the operations of
the present one. So rank 0 had computed all gradients between the last cycle before its last tick
and that tick. What follows that moment makes the step longer: it is *exposed*.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from escala.core.errors import InputError
from escala.core.readable import counted, size
from escala.probes import timeline
from escala.probes._trace_file import opened

#: Parts of a step in the order in which an instant counts for one of them; `unsplit` is time of an
#: operation that none of its named parts covers.
PARTS = {
    "transfer": timeline.COMMUNICATION,
    "copies": timeline.COPYING,
    "waiting": timeline.WAITING,
    "unsplit": timeline.OTHER,
    "negotiation": timeline.NEGOTIATION,
}
#: The fewest steps after the first one.
MIN_STEPS = 2
#: Horovod's default time between two cycles (`HOROVOD_CYCLE_TIME`, version 0.28), in seconds.
_CYCLE_SECONDS = 1e-3


class Diagnosis(NamedTuple):
    """The steps of a timeline.

    Attributes
    ----------
    steps : of each, `step_seconds`, those of `PARTS`, `unexplained` (Horovod did nothing, in
        seconds like them), `exposed_low` and `exposed_high`, and the number of `operations`.
    operations : of each fused operation, `tensors`, `bytes` (missing if unknown) and `seconds`.
    waits : of each negotiation whose ranks are known, the `last` rank that was ready, and `seconds`
        after the first one.
    ends : sentences on what had begun and not ended, and on where reading ended.
    """

    steps: pd.DataFrame
    operations: pd.DataFrame
    waits: pd.DataFrame
    ends: tuple[str, ...]


def diagnose(path: Path) -> Diagnosis:
    """Return the steps of a timeline, whose file may be cut short; a damaged one ends there.

    Raises
    ------
    InputError : it is no timeline, or has fewer than `MIN_STEPS` whole steps after the first.
    """
    with opened(path) as events:
        kept = list(events)
        # A damaged place ends the events by None.
        damaged, closed = bool(kept) and kept[-1] is None, events.closed
        kept = kept[: len(kept) - damaged]
    phases = timeline.intervals(kept)
    operations, waits = _operations(phases, timeline.ready(kept))
    numbered = _in_steps(operations)
    if numbered["step"].nunique() <= MIN_STEPS:
        raise InputError(
            path,
            counted(len(operations), "operation"),
            f"holds fewer than {MIN_STEPS} whole steps of Horovod after the first",
            "name the file of HOROVOD_TIMELINE, which only rank 0 writes; let the training make "
            "three steps or more, and give a tensor the same name at each step",
        )
    ends = [*_unfinished(kept)]
    if damaged:
        ends.append("The file is damaged, or several were joined: it was read up to that place.")
    elif not closed:
        ends.append("Horovod did not end the file: the run was killed, or is still running.")
    fused = numbered[numbered["step"] > 0].groupby("operation")
    step_table = pd.DataFrame(
        {
            "tensors": fused["tensor"].size(),
            "bytes": fused["bytes"].sum(min_count=1).astype(float),
            "seconds": fused["end"].max() - fused["start"].min(),
        }
    )
    return Diagnosis(_steps(numbered, operations, phases), step_table, waits, tuple(ends))


def _unfinished(events: list[dict]) -> Iterator[str]:
    """Yield a sentence on the first phase that had begun and not ended."""
    begun, names = timeline.Begun(), timeline.tensors(events)
    for event in events:
        if event["ph"] in "BE":
            (begun.begin if event["ph"] == "B" else begun.end)(event)
    left = [stack[-1] for stack in begun.open.values() if stack]
    for event in sorted(left, key=lambda each: each["ts"])[:1]:
        tensor = names.get(event["pid"], f"tensor {event['pid']}")
        yield f"At the end, {event['name']} of {tensor} had begun."


def _operations(phases: pd.DataFrame, ready: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the operations on tensors with their negotiations, and `Diagnosis.waits`.

    Returns
    -------
    Of each operation `tensor`, `phase`, `bytes`, `start`, `end`, and of the negotiation before it,
    missing if there is none: `first`, the request of the first rank; `rank_0`, when rank 0 was
    ready, missing if this is not recorded; `agreed`, when all ranks were ready.
    """
    columns = {"start_seconds": "start", "end_seconds": "end"}
    whole = phases[phases["depth"] == 0].rename(columns=columns)
    negotiates = whole["phase"].str.startswith("NEGOTIATE_")
    negotiations = whole.loc[negotiates, ["tensor", "start", "end"]].rename(
        columns={"start": "first", "end": "agreed"}
    )
    # Ticks belong to the last negotiation that began before them, also to one without an end.
    ticks = pd.merge_asof(
        ready.astype({"seconds": float}).sort_values("seconds"),
        negotiations,
        left_on="seconds",
        right_on="first",
        by="tensor",
    ).dropna(subset="first")
    ticks = ticks[ticks["seconds"] <= ticks["agreed"]]
    of_rank_0 = ticks[ticks["rank"] == 0].groupby(["tensor", "first"])["seconds"].min()
    negotiations = negotiations.join(of_rank_0.rename("rank_0"), on=["tensor", "first"])
    operations = pd.merge_asof(
        whole[~negotiates].sort_values("start"),
        negotiations.sort_values("agreed"),
        left_on="start",
        right_on="agreed",
        by="tensor",
    )
    # With its response cache, Horovod records the ranks of the first negotiation on a tensor only.
    by_tensor = negotiations.groupby("tensor")["first"].min()
    ticks = ticks[ticks["first"] > ticks["tensor"].map(by_tensor)]
    by_negotiation = ticks.groupby(["first", "tensor"])
    waits = pd.DataFrame(
        {
            "last": by_negotiation["rank"].last(),
            "seconds": by_negotiation["seconds"].max() - by_negotiation["seconds"].min(),
        }
    )
    return operations, waits.reset_index(drop=True)


def _in_steps(operations: pd.DataFrame) -> pd.DataFrame:
    """Return the operations on tensors that each step exchanges, with the number of their `step`.

    These are tensors of at least half as many operations as the most frequent one. `operation` is
    the number of the fused operation: operations that overlap are one. A step is left out if not
    all of its tensors were exchanged.
    """
    begins = operations["start"] >= operations["end"].cummax().shift(fill_value=-np.inf)
    done = operations.assign(operation=begins.cumsum())
    done = done[done["phase"].isin(timeline.OPERATIONS - {"BROADCAST"})]
    counts = done["tensor"].map(done["tensor"].value_counts())
    done = done[counts >= counts.max() / 2]
    done = done.assign(step=done.groupby("tensor").cumcount())
    return done[done.groupby("step")["tensor"].transform("size") == done["tensor"].nunique()]


def _steps(numbered: pd.DataFrame, operations: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    """Return `Diagnosis.steps`; the first step only begins the second."""
    moments = numbered.assign(
        earliest=numbered["rank_0"].fillna(numbered["first"]).fillna(numbered["start"]),
        latest=numbered["rank_0"].fillna(numbered["agreed"]).fillna(numbered["start"]),
    )
    by_step = moments.groupby("step")
    steps = by_step[["end", "earliest", "latest"]].max()
    steps["operations"] = by_step["operation"].nunique()
    steps["begin"] = steps["end"].shift()
    steps = steps[steps.index.to_series().diff() == 1]
    begin, end = steps["begin"], steps["end"]
    latest = steps["latest"].clip(lower=begin)
    found = {"step_seconds": end - begin}
    families = phases["phase"].map(timeline.family)
    intervals, before = phases[["start_seconds", "end_seconds"]].to_numpy(), 0.0
    together = np.empty((0, 2))
    for part, family in PARTS.items():
        together = _joined(np.concatenate([together, intervals[families == family]]))
        covered = _covered_until(end, together) - _covered_until(begin, together)
        found[part], before = covered - before, covered
    exposed = end - _cycle_before(steps["earliest"].clip(lower=begin), operations)
    return pd.DataFrame(
        found
        | {
            "unexplained": end - begin - before,
            "exposed_low": end - latest,
            "exposed_high": exposed.clip(upper=end - begin),
            "operations": steps["operations"],
        }
    ).reset_index(drop=True)


def _joined(intervals: np.ndarray, apart: float = 0.0) -> np.ndarray:
    """Join intervals that overlap, or follow one another by at most `apart` seconds."""
    if not len(intervals):
        return intervals
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    reached = np.maximum.accumulate(ordered[:, 1])
    first = np.flatnonzero(np.r_[True, ordered[1:, 0] > reached[:-1] + apart])
    return np.column_stack([ordered[first, 0], reached[np.r_[first[1:], len(ordered)] - 1]])


def _covered_until(moments: pd.Series, intervals: np.ndarray) -> np.ndarray:
    """Return the seconds that intervals, which do not overlap, cover before each moment."""
    if not len(intervals):
        return np.zeros(len(moments))
    lengths = np.diff(intervals).ravel()
    covered = np.c_[lengths.cumsum() - lengths, lengths.cumsum()]
    return np.interp(moments, intervals.ravel(), covered.ravel())


def _cycle_before(requests: pd.Series, operations: pd.DataFrame) -> pd.Series:
    """Return when the cycle before each request began, at which it had not been seen.

    While the background thread performs operations, it looks at no request.
    """
    busy = _joined(operations[["start", "end"]].to_numpy(), _CYCLE_SECONDS)
    before = np.searchsorted(busy[:, 0], requests, side="right") - 1
    within = (before >= 0) & (busy[before, 1] >= requests - _CYCLE_SECONDS)
    return requests.where(~within, busy[before, 0]) - _CYCLE_SECONDS


def milliseconds(seconds: float) -> str:
    """Return a time in ms with three digits."""
    return f"{float(f'{seconds * 1e3:.3g}'):g} ms"


def lines(found: Diagnosis) -> Iterator[str]:
    """Yield the sentences of a diagnosis."""
    steps, seconds = found.steps.median(), found.steps["step_seconds"]
    step = steps["step_seconds"]
    ms = {name: milliseconds(value) for name, value in steps.items()}
    yield (
        f"{counted(len(found.steps), 'step')} after the first; a step takes {ms['step_seconds']} "
        f"({milliseconds(seconds.min())} to {milliseconds(seconds.max())})."
    )
    inside = ["transfer", "copies", "waiting", "unsplit"]
    whole = found.steps[inside].sum(axis=1).median()
    yield (
        f"Horovod's operations take {milliseconds(whole)} of it ({whole / step:.0%}): "
        f"{ms['transfer']} in the collective, {ms['copies']} to and from the fusion buffer, "
        f"{ms['waiting']} waiting for data, {ms['unsplit']} that the timeline does not split."
    )
    low, high = (steps[f"exposed_{end}"] / step for end in ("low", "high"))
    yield (
        f"Estimated: the step is {ms['exposed_low']} to {ms['exposed_high']} longer "
        f"({low:.0%} to {high:.0%}) by what follows the last gradient of rank 0, with waiting for "
        "slower ranks."
    )
    yield (
        "Negotiation, from the request of the first rank to that of the last one, takes another "
        f"{ms['negotiation']}; for {ms['unexplained']} Horovod does nothing."
    )
    if found.waits.empty:
        yield (
            "The timeline does not record which rank was last. HOROVOD_CACHE_CAPACITY=0 makes "
            "Horovod record it, and costs time."
        )
    else:
        fractions = found.waits["last"].value_counts(normalize=True)
        last_waits = found.waits.loc[found.waits["last"] == fractions.index[0], "seconds"]
        yield (
            f"Rank {fractions.index[0]} is the last in {fractions.iloc[0]:.0%} of "
            f"{len(found.waits)} negotiations; the first one then waits "
            f"{milliseconds(last_waits.median())}."
        )
    operations = found.operations
    yield (
        f"A step has {steps['operations']:g} fused operations (median) of "
        f"{operations['tensors'].mean():.1f} tensors each (mean)."
    )
    largest = operations[operations["bytes"] == operations["bytes"].max()]
    if len(largest):
        took, sent = largest["seconds"].median(), int(largest["bytes"].iloc[0])
        yield (
            f"The largest one has {size(sent)} and takes {milliseconds(took)} "
            f"({sent / took / 1e6:.0f} MB/s)."
        )
    yield from found.ends
