"""Diagnose training from a Horovod timeline, even of a run that Escala did not start.

A step ends when the last operation on any of its tensors ends. Each step exchanges a tensor once,
so the n-th operation on a tensor belongs to step n. The first step is left out, because it includes
the start.

Rank 0 writes the timeline. A negotiation begins with the request of the *first* rank. Any rank may
be the first. Readiness ticks tell when each rank was ready. With its response cache, Horovod writes
ticks only for the first negotiation on a tensor. Without a tick, it is only known that rank 0 was
ready between the first request and the end of the negotiation.

The process of rank 0 requests a gradient as soon as it has computed it. Horovod's background thread
looks for requests once in a cycle, and writes the tick of a request when it sees it. So the last
gradient was ready at its tick or earlier, but not before the begin of the previous cycle. The part
of the step after the last gradient makes the step longer: this part is *exposed*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from escala.analysis.intervals import cover_in_order, join
from escala.analysis.traces.horovod_events import (
    OPERATION,
    Recording,
    Unfinished,
    read,
    too_few_steps,
)
from escala.core.readable import milliseconds, size, with_noun
from escala.probes import timeline
from escala.probes.timeline import open_events

#: Parts of a step. An instant counts for the first part, in this order, that covers it.
TRANSFER, COPIES, WAITING, UNSPLIT, NEGOTIATION = PARTS = (
    "transfer", "copies", "waiting", "unsplit", "negotiation",
)  # fmt: skip
UNEXPLAINED = "unexplained"
#: Each part has the phases of one family.
_FAMILIES = {
    TRANSFER: timeline.COMMUNICATION,
    COPIES: timeline.COPYING,
    WAITING: timeline.WAITING,
    UNSPLIT: OPERATION,
    NEGOTIATION: timeline.NEGOTIATION,
}
#: Number of first steps that are left out, and fewest steps that a diagnosis needs.
_FIRST_STEPS_LEFT_OUT, MIN_STEPS = 1, 2
#: Horovod's default time between two cycles (`HOROVOD_CYCLE_TIME`, version 0.28), in seconds.
_CYCLE_SECONDS = 1e-3


@dataclass(frozen=True)
class Timeline:
    """The parts of the steps of a timeline.

    Attributes
    ----------
    steps : one row for each step, with the seconds `step_seconds`, seconds of each of `PARTS`
        (`unsplit` is time of an operation outside its named phases), `unexplained` (Horovod did
        nothing), `exposed_low` and `exposed_high` (bounds of the exposed part), and `waited` (the
        part of `exposed_low` before all ranks were ready; missing without ticks of rank 0).
        `operations` is the number of fused operations.
    operations : one row for each fused operation of a step: `tensors` (their number), `bytes`
        (missing if unknown), `seconds` and `phase`.
    waits : one row for each negotiation of all ranks: `last` (the last rank to be ready) and
        `seconds` (from the first rank to the last). Empty if the timeline does not record which
        rank was last.
    ranks : all ranks that the timeline names; empty if it names no rank.
    unfinished : phases without an end, in the order of their begins.
    """

    steps: pd.DataFrame
    operations: pd.DataFrame
    waits: pd.DataFrame
    ranks: frozenset[int]
    unfinished: tuple[Unfinished, ...]


@dataclass(frozen=True)
class Diagnosis:
    """The timelines of a file.

    Attributes
    ----------
    timelines : timelines with enough steps. A file has one timeline, unless files were joined.
    short : number of Horovod's timelines with too few steps.
    closed : whether the file ends with the end of its JSON array. Horovod writes this end whenever
        it has written all events, and overwrites it later. So a closed file may be from a run that
        was killed.
    damage : why the file was not read to its end, with the place; None if it was.
    """

    timelines: tuple[Timeline, ...]
    short: int
    closed: bool
    damage: str | None


def diagnose(path: Path) -> Diagnosis:
    """Return the parts of the steps of a timeline. The file may be cut short or damaged.

    Raises
    ------
    InputError : the file is no timeline, or has fewer than `MIN_STEPS` whole steps after the first.
    """
    with open_events(path) as events:
        recordings = read(events)
    timelines = []
    for recording in recordings:
        operations = recording.operations()
        if operations.empty or not recording.is_horovod:
            continue
        # Operations that overlap are one fused operation.
        previous_end = operations["end"].cummax().shift().fillna(-np.inf)
        exchanges = operations.assign(operation=(operations["start"] >= previous_end).cumsum())
        exchanges = exchanges[~exchanges["phase"].str.startswith("BROADCAST")]
        # A tensor that every step exchanges has at least half the operations of the most frequent
        # tensor.
        counts = exchanges["tensor"].map(exchanges["tensor"].value_counts())
        exchanges = exchanges[counts >= counts.max() / 2]
        exchanges = exchanges.assign(step=exchanges.groupby("tensor").cumcount())
        # A step is left out if not all of its tensors were exchanged.
        tensors_of_step = exchanges.groupby("step")["tensor"].transform("size")
        is_complete = tensors_of_step == exchanges["tensor"].nunique()
        if is_complete.any():
            exchanges = exchanges[is_complete]
        steps = _steps(exchanges, operations, recording)
        if len(steps) < MIN_STEPS:
            continue
        waits = recording.waits()
        is_shown = (waits["ranks"] == len(recording.ranks)) & waits["tensor"].isin(
            exchanges["tensor"]
        )
        timelines.append(
            Timeline(
                steps.reset_index(drop=True),
                _fuse(exchanges[exchanges["step"] >= _FIRST_STEPS_LEFT_OUT]),
                waits.loc[is_shown, ["last", "seconds"]],
                frozenset(recording.ranks),
                recording.find_unfinished(),
            )
        )
    if not timelines:
        raise too_few_steps(path, max(recordings, key=lambda recording: recording.events), events)
    short = sum(recording.is_horovod for recording in recordings) - len(timelines)
    return Diagnosis(tuple(timelines), short, events.closed, events.damage)


def _steps(exchanges: pd.DataFrame, operations: pd.DataFrame, recording: Recording) -> pd.DataFrame:
    """Return `Timeline.steps` from the operations of its steps and all operations of the recording.

    The first step only gives the begin of the second step.
    """
    # Rank 0 had a gradient between `earliest` and `latest`, and all ranks had it at `ready`.
    exchanges = exchanges.assign(
        earliest=exchanges["rank_0"].fillna(exchanges["first"]).fillna(exchanges["start"]),
        latest=exchanges["rank_0"].fillna(exchanges["agreed"]).fillna(exchanges["start"]),
        ready=exchanges["agreed"].fillna(exchanges["start"]),
        ticked=exchanges["rank_0"].notna(),
    )
    steps = exchanges.groupby("step").agg(
        end=("end", "max"),
        earliest=("earliest", "max"),
        latest=("latest", "max"),
        ready=("ready", "max"),
        ticked=("ticked", "all"),
        operations=("operation", "nunique"),
    )
    steps["begin"] = steps["end"].shift()
    follows = steps.index.to_series().diff() == 1
    steps = steps[follows & (steps.index >= _FIRST_STEPS_LEFT_OUT)]
    begin, end = steps["begin"].to_numpy(), steps["end"].to_numpy()
    families = {part: recording.intervals(family) for part, family in _FAMILIES.items()}
    seconds = cover_in_order(families, begin, end)
    covered = sum(seconds.values())
    latest = steps["latest"].clip(lower=begin)
    # The upper bound of the exposed part. The request was made after the thread last looked and
    # before it was seen. The thread looks once in a cycle, and not while it performs operations. So
    # the request is at most one cycle older than the moment when it was seen, or than the begin of
    # the operations that ended up to one cycle before this moment.
    seen = steps["earliest"].clip(lower=begin)
    busy = join(operations[["start", "end"]].to_numpy(), _CYCLE_SECONDS)
    before = np.searchsorted(busy[:, 0], seen, side="right") - 1
    thread_is_busy = (before >= 0) & (busy[before, 1] >= seen - _CYCLE_SECONDS)
    exposed = end - (seen.where(~thread_is_busy, busy[before, 0]) - _CYCLE_SECONDS)
    return pd.DataFrame(
        {"step_seconds": end - begin}
        | seconds
        | {UNEXPLAINED: end - begin - covered}
        | {
            "exposed_low": (end - latest).to_numpy(),
            "exposed_high": exposed.clip(upper=end - begin).to_numpy(),
            "waited": (steps["ready"] - latest).clip(lower=0).where(steps["ticked"]).to_numpy(),
            "operations": steps["operations"].to_numpy(),
        }
    )


def _fuse(exchanges: pd.DataFrame) -> pd.DataFrame:
    """Return `Timeline.operations`: a row for each fused operation."""
    groups = exchanges.groupby("operation")
    fused = groups.agg(
        tensors=("tensor", "size"),
        start=("start", "min"),
        end=("end", "max"),
        phase=("phase", "first"),
    )
    fused["bytes"] = groups["bytes"].sum(min_count=1)
    fused["seconds"] = fused.pop("end") - fused.pop("start")
    return fused.reset_index(drop=True)


def lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the sentences of a diagnosis."""
    several = len(diagnosis.timelines) + diagnosis.short > 1
    for number, diagnosed in enumerate(diagnosis.timelines, 1):
        if several:
            yield f"Timeline {number}, among timelines with enough steps:"
        yield from _timeline_sentences(diagnosed)
    if diagnosis.short:
        yield f"{with_noun(diagnosis.short, 'timeline')} of the file had too few steps."
    if diagnosis.damage:
        yield f"The file was not read to its end: {diagnosis.damage}."
    elif not diagnosis.closed:
        yield "Horovod did not end the file: the run was killed, or is still running."


def _timeline_sentences(diagnosed: Timeline) -> Iterator[str]:
    steps = diagnosed.steps
    seconds = steps["step_seconds"]
    step = seconds.median()
    yield (
        f"{with_noun(len(steps), 'step')} after the first; a step takes {milliseconds(step)} "
        f"({milliseconds(seconds.min())} to {milliseconds(seconds.max())})."
    )
    parts = steps[[TRANSFER, COPIES, WAITING, UNSPLIT]].median()
    whole = steps[parts.index].sum(axis=1).median()
    places = [
        f"{milliseconds(parts[TRANSFER])} in the collective",
        f"{milliseconds(parts[COPIES])} to and from the fusion buffer",
    ]
    if parts[WAITING]:
        places.append(f"{milliseconds(parts[WAITING])} waiting for data")
    if parts[UNSPLIT]:
        places.append(f"{milliseconds(parts[UNSPLIT])} that the timeline does not split")
    yield (
        f"Horovod's operations take {milliseconds(whole)} of a step ({whole / step:.0%}): "
        f"{', '.join(places)}."
    )
    low, high = steps["exposed_low"].median(), steps["exposed_high"].median()
    waited = steps["waited"].dropna()
    about_wait = f"Of this time, rank 0 waits {milliseconds(waited.median())} for slower ranks."
    if len(waited) < len(steps) / 2:
        about_wait = (
            "The moment of this gradient is not recorded. So the larger bound also contains the "
            "time until the slowest rank was ready."
        )
    yield (
        f"Estimated: the step is {milliseconds(low)} to {milliseconds(high)} longer "
        f"({low / step:.0%} to {high / step:.0%}) by what follows the last gradient of rank 0. "
        f"{about_wait}"
    )
    yield (
        "Negotiation, from the request of the first rank to that of the last rank, takes another "
        f"{milliseconds(steps[NEGOTIATION].median())}; for "
        f"{milliseconds(steps[UNEXPLAINED].median())} Horovod does nothing."
    )
    yield from _exchange_sentences(diagnosed)
    for phase in diagnosed.unfinished[:1]:
        more = len(diagnosed.unfinished) - 1
        yield f"At the end, {phase.sentence()}{f', and {more} more' if more else ''}."


def _exchange_sentences(diagnosed: Timeline) -> Iterator[str]:
    waits, operations = diagnosed.waits, diagnosed.operations
    if diagnosed.ranks == {0}:
        yield (
            "The timeline is of one process, which exchanges nothing. Start two or more, "
            "horovodrun -np 2, to see what an exchange takes."
        )
    elif waits.empty:
        yield (
            "The timeline does not record which rank was last. HOROVOD_CACHE_CAPACITY=0 makes "
            "Horovod record it, and costs time."
        )
    else:
        last = waits["last"].value_counts(normalize=True)
        slowest_waits = waits.loc[waits["last"] == last.index[0], "seconds"]
        yield (
            f"Rank {last.index[0]} is the last in {last.iloc[0]:.0%} of {len(waits)} negotiations; "
            f"the first one then waits {milliseconds(slowest_waits.median())}."
        )
    tensors = operations["tensors"].sum() / len(operations)
    yield (
        f"A step has {diagnosed.steps['operations'].median():g} fused operations (median) of "
        f"{tensors:.1f} tensors each (mean)."
    )
    known = operations.dropna(subset="bytes")
    if known.empty:
        yield "The timeline does not hold the bytes of the tensors."
    else:
        largest = known[known["bytes"] == known["bytes"].max()]
        seconds, sent = largest["seconds"].median(), int(largest["bytes"].iloc[0])
        yield (
            f"The largest one has {size(sent)} and takes {milliseconds(seconds)} "
            f"({sent / seconds / 1e6:.0f} MB/s)."
        )
