"""Diagnose training from a Horovod timeline, also of a run that knows nothing of Escala.

A step ends when the last operation on one of its tensors ends. A tensor that is exchanged once a
step occurs once in each, so the n-th operation on it belongs to step n. The first step is left out:
it holds the start.

Rank 0 writes the timeline. Its process requests a tensor when it is known, but Horovod's background
thread sees the request only at its next cycle, after the operations of the present one. So the
moment when rank 0 had computed all gradients lies between the last cycle before the last request
and that request. What follows it makes the step longer: this part of the exchange is *exposed*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from escala.analysis.attribution import UNEXPLAINED, covered
from escala.core.errors import InputError
from escala.core.readable import counted, size
from escala.probes import timeline

#: Parts of a step in the order in which an instant counts for one of them.
TRANSFER, COPIES, WAITING, NEGOTIATION = PARTS = ("transfer", "copies", "waiting", "negotiation")
_FAMILIES = {
    TRANSFER: timeline.COMMUNICATION,
    COPIES: timeline.COPYING,
    WAITING: timeline.WAITING,
    NEGOTIATION: timeline.NEGOTIATION,
}
#: Steps that are left out at the start, and the fewest that must be left.
_START, _MIN_STEPS = 1, 2
#: Horovod's default time between two cycles (`HOROVOD_CYCLE_TIME`, version 0.28), in seconds.
_CYCLE_SECONDS = 1e-3


@dataclass(frozen=True)
class Unfinished:
    """A phase that had begun and not ended at the end of the timeline.

    Attributes
    ----------
    ready : ranks that were ready for the tensor; empty if the timeline does not record them.
    seconds : from the begin of the phase to the last event.
    """

    tensor: str
    phase: str
    ready: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Diagnosis:
    """The parts of the steps of a timeline.

    Attributes
    ----------
    closed : whether the file ends as an array. Horovod ends it whenever it has written all events,
        and continues later, so a file that is closed may be of a run that was killed.
    steps : one row for each step, with columns `step_seconds`, those of `PARTS`, `unexplained`
        (Horovod did nothing, in seconds like them), `exposed_low` and `exposed_high`, and
        `operations`.
    operations : one row for each fused operation of a step: `tensors`, `bytes` (missing if
        unknown), `seconds` and `phase`.
    waits : one row for each tensor that all ranks were ready for: `last`, the rank that was so
        last, and `seconds` after the first one. Empty if the timeline does not record it.
    unfinished : in order of their begin.
    """

    closed: bool
    steps: pd.DataFrame
    operations: pd.DataFrame
    waits: pd.DataFrame
    unfinished: tuple[Unfinished, ...]


def diagnose(path: Path) -> Diagnosis:
    """Return the parts of the steps of a timeline, whose file may be cut short.

    Raises
    ------
    InputError : it is no timeline, or has fewer than `_MIN_STEPS` whole steps after the first.
    """
    text = path.read_text(errors="replace")
    events = [event for event in timeline.repair(text) if "ph" in event]
    phases = timeline.intervals(events)
    if phases.empty:
        raise InputError(
            path,
            f"{path.stat().st_size} bytes",
            "holds no phase of a Horovod timeline that ended",
            "name the file of HOROVOD_TIMELINE or --timeline-filename",
        )
    numbered = _in_steps(phases)
    last = numbered["step"].max()
    if not len(numbered) or last < _START + _MIN_STEPS - 1:
        raise InputError(
            path,
            f"{counted(len(phases), 'phase')}",
            "holds too few steps that ended",
            "let the timeline hold three steps or more",
        )
    return Diagnosis(
        text.rstrip().endswith("]"),
        _steps(numbered, phases),
        _operations(numbered, phases),
        _waits(timeline.ready(events), set(numbered["tensor"])),
        tuple(_unfinished(events)),
    )


def _in_steps(phases: pd.DataFrame) -> pd.DataFrame:
    """Return the operations on tensors that each step exchanges, with the number of their `step`.

    These are tensors of at least half as many operations as the most frequent one. They have
    `requested`, the begin of the negotiation before each operation, or without one the begin of the
    operation. A step is left out if not all of its tensors were exchanged.
    """
    whole = phases[phases["depth"] == 0]
    negotiated = whole["phase"].map(timeline.family) == timeline.NEGOTIATION
    done = whole[~negotiated & ~whole["phase"].str.startswith("BROADCAST")]
    done = done.assign(
        operation=timeline.operations(phases), step=done.groupby("tensor").cumcount()
    )
    counts = done["tensor"].map(done["tensor"].value_counts())
    done = done[counts >= counts.max() / 2]
    requests = whole[negotiated].sort_values("end_seconds")
    done = pd.merge_asof(
        done.sort_values("start_seconds"),
        requests[["tensor", "end_seconds", "start_seconds"]].rename(
            columns={"end_seconds": "agreed", "start_seconds": "requested"}
        ),
        left_on="start_seconds",
        right_on="agreed",
        by="tensor",
    )
    done["requested"] = done["requested"].fillna(done["start_seconds"])
    tensors = done["tensor"].nunique()
    complete = done.groupby("step")["tensor"].transform("size") == tensors
    return done[complete] if complete.any() else done


def _steps(numbered: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    families = phases["phase"].map(timeline.family)
    of_part = {
        part: phases.loc[families == family, ["start_seconds", "end_seconds"]].to_numpy()
        for part, family in _FAMILIES.items()
    }
    busy = _joined(
        numbered.groupby("operation").agg(
            start=("start_seconds", "min"), end=("end_seconds", "max")
        )
    )
    ends = numbered.groupby("step")["end_seconds"].max()
    rows = []
    for step in ends.index[_START:]:
        if step - 1 not in ends.index:
            continue
        begins, end = ends[step - 1], ends[step]
        parts = {
            part: intervals[(intervals[:, 1] > begins) & (intervals[:, 0] < end)]
            for part, intervals in of_part.items()
        }
        shares = covered(parts, begins, end)
        of_step = numbered[numbered["step"] == step]
        low, high = _exposed(of_step, busy, begins, end)
        rows.append(
            {"step_seconds": end - begins}
            | {name: shares[name] for name in (*PARTS, UNEXPLAINED)}
            | {"exposed_low": low, "exposed_high": high}
            | {"operations": of_step["operation"].nunique()}
        )
    return pd.DataFrame(rows, index=pd.RangeIndex(len(rows), name="step"))


def _joined(operations: pd.DataFrame) -> np.ndarray:
    """Return intervals in which the background thread looked at no request, of shape (n, 2)."""
    ordered = operations.sort_values("start")
    later = ordered["start"] > ordered["end"].cummax().shift(fill_value=-np.inf) + _CYCLE_SECONDS
    runs = ordered.groupby(later.cumsum())
    return np.column_stack([runs["start"].min(), runs["end"].max()])


def _exposed(
    of_step: pd.DataFrame, busy: np.ndarray, begins: float, end: float
) -> tuple[float, float]:
    """Return the least and the most seconds of a step after the last gradient of rank 0."""
    last = max(of_step["requested"].max(), begins)
    before = busy[(busy[:, 0] <= last) & (busy[:, 1] >= last - _CYCLE_SECONDS)]
    cycle = min([last, *before[:, 0]]) - _CYCLE_SECONDS
    return end - last, end - max(cycle, begins)


def _operations(numbered: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    later = numbered[numbered["step"] >= _START]
    groups = later.groupby("operation")
    found = groups.agg(
        tensors=("tensor", "size"),
        start=("start_seconds", "min"),
        end=("end_seconds", "max"),
        phase=("phase", "first"),
    )
    found["bytes"] = groups["bytes"].sum(min_count=1)
    found["seconds"] = found.pop("end") - found.pop("start")
    return found.reset_index(drop=True)


def _waits(ready: pd.DataFrame, tensors: Collection[str]) -> pd.DataFrame:
    """Return for each negotiation that all ranks joined which one was last, and after how long.

    The first one of each tensor is left out. With its response cache, Horovod records no other.
    """
    ready = ready.assign(turn=ready.groupby(["tensor", "rank"]).cumcount())
    joined = ready.groupby(["tensor", "turn"])["rank"].transform("size") == ready["rank"].nunique()
    ready = ready[joined & (ready["turn"] >= _START) & ready["tensor"].isin(tensors)]
    if ready.empty:
        return pd.DataFrame({"last": [], "seconds": []})
    groups = ready.groupby(["tensor", "turn"])["seconds"]
    last = ready.loc[groups.idxmax(), "rank"].to_numpy()
    return pd.DataFrame({"last": last, "seconds": (groups.max() - groups.min()).to_numpy()})


def _unfinished(events: list[dict]) -> Iterator[Unfinished]:
    """Yield the innermost phase of each tensor that did not end, in the order of their begins."""
    names, begun, ready = timeline.tensors(events), defaultdict(list), defaultdict(list)
    for event in events:
        number = event.get("pid")
        if event["ph"] == "B":
            if not begun[number]:
                ready[number] = []
            begun[number].append(event)
        elif event["ph"] == "E" and begun[number]:
            begun[number].pop()
        elif event["ph"] == "X" and event["name"].isdigit():
            ready[number].append(int(event["name"]))
    end = max((event["ts"] for event in events if "ts" in event), default=0)
    innermost = {number: stack[-1] for number, stack in begun.items() if stack}
    for number, event in sorted(innermost.items(), key=lambda each: each[1]["ts"]):
        yield Unfinished(
            names.get(number, str(number)),
            event["name"],
            tuple(sorted(ready[number])),
            (end - event["ts"]) * timeline.MICROSECONDS,
        )


def lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the sentences of a diagnosis."""
    steps = diagnosis.steps
    step = steps["step_seconds"].median()
    yield (
        f"{counted(len(steps), 'step')} after the first; a step takes {_ms(step)} "
        f"({_ms(steps['step_seconds'].min())} to {_ms(steps['step_seconds'].max())})."
    )
    moved = (steps[TRANSFER] + steps[COPIES]).median()
    low, high = steps["exposed_low"].median(), steps["exposed_high"].median()
    yield (
        f"Horovod transfers or copies for {_ms(moved)} of it ({moved / step:.0%}): "
        f"{_ms(steps[TRANSFER].median())} in the collective, {_ms(steps[COPIES].median())} to and "
        "from the fusion buffer."
    )
    yield (
        f"Estimated: the step is {_ms(low)} to {_ms(high)} longer ({low / step:.0%} to "
        f"{high / step:.0%}) by what follows the last gradient of rank 0."
    )
    yield (
        f"Negotiation, mostly waiting for the slowest rank, takes another "
        f"{_ms(steps[NEGOTIATION].median())}; for {_ms(steps[UNEXPLAINED].median())} Horovod does "
        "nothing."
    )
    yield from _of_waits(diagnosis.waits)
    yield from _of_operations(diagnosis)
    yield from _of_end(diagnosis)


def _of_waits(waits: pd.DataFrame) -> Iterator[str]:
    if waits.empty:
        yield (
            "The timeline does not record which rank was last. HOROVOD_CACHE_CAPACITY=0 makes "
            "Horovod record it, and costs time."
        )
        return
    share = waits["last"].value_counts(normalize=True)
    of_slowest = waits.loc[waits["last"] == share.index[0], "seconds"]
    yield (
        f"Rank {share.index[0]} is the last in {share.iloc[0]:.0%} of {len(waits)} negotiations; "
        f"the first one then waits {_ms(of_slowest.median())}."
    )


def _of_operations(diagnosis: Diagnosis) -> Iterator[str]:
    operations, per_step = diagnosis.operations, diagnosis.steps["operations"]
    tensors = operations["tensors"].sum() / len(operations)
    yield (
        f"A step has {per_step.median():g} fused operations (median) of {tensors:.1f} tensors each "
        "(mean)."
    )
    known = operations.dropna(subset="bytes")
    if known.empty:
        yield "The timeline does not hold the bytes of the tensors."
        return
    largest = known[known["bytes"] == known["bytes"].max()]
    seconds, sent = largest["seconds"].median(), int(largest["bytes"].iloc[0])
    yield (
        f"The largest one has {size(sent)} and takes {_ms(seconds)} "
        f"({sent / seconds / 1e6:.0f} MB/s)."
    )


def _of_end(diagnosis: Diagnosis) -> Iterator[str]:
    if not diagnosis.closed:
        yield "Horovod did not end the file: the run was killed, or is still running."
    for each in diagnosis.unfinished[:1]:
        more = len(diagnosis.unfinished) - 1
        ready = f", for which {_ranks(each.ready)} ready" if each.ready else ""
        others = f", and {more} more" if more else ""
        yield (
            f"At the end, {each.phase} of {each.tensor} had begun {_ms(each.seconds)} before"
            f"{ready}{others}."
        )


def _ranks(numbers: tuple[int, ...]) -> str:
    listed = ", ".join(map(str, numbers))
    return f"rank {listed} was" if len(numbers) == 1 else f"ranks {listed} were"


def _ms(seconds: float) -> str:
    """Return a time in ms with three digits."""
    return f"{float(f'{seconds * 1e3:.3g}'):g} ms"
