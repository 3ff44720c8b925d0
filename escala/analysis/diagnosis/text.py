"""Write a diagnosis in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.diagnosis import (
    COPIES,
    NEGOTIATION,
    TRANSFER,
    UNEXPLAINED,
    UNSPLIT,
    WAITING,
    Diagnosis,
    Timeline,
)
from escala.analysis.diagnosis.recording import milliseconds
from escala.core.readable import counted, size


def lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the sentences of a diagnosis."""
    several = len(diagnosis.timelines) + diagnosis.short > 1
    for number, timeline in enumerate(diagnosis.timelines, 1):
        if several:
            yield f"Timeline {number} of those with enough steps:"
        yield from _timeline_sentences(timeline)
    if diagnosis.short:
        yield f"{counted(diagnosis.short, 'timeline')} of the file had too few steps."
    if diagnosis.damage:
        yield f"The file was not read to its end: {diagnosis.damage}."
    elif not diagnosis.closed:
        yield "Horovod did not end the file: the run was killed, or is still running."


def _timeline_sentences(timeline: Timeline) -> Iterator[str]:
    steps = timeline.steps
    seconds = steps["step_seconds"]
    step = seconds.median()
    yield (
        f"{counted(len(steps), 'step')} after the first; a step takes {milliseconds(step)} "
        f"({milliseconds(seconds.min())} to {milliseconds(seconds.max())})."
    )
    yield _parts_sentence(steps, step)
    yield _exposed_sentence(steps, step)
    yield (
        "Negotiation, from the request of the first rank to that of the last one, takes another "
        f"{milliseconds(steps[NEGOTIATION].median())}; for "
        f"{milliseconds(steps[UNEXPLAINED].median())} Horovod does nothing."
    )
    yield from _wait_sentences(timeline)
    yield from _operation_sentences(timeline)
    for each in timeline.unfinished[:1]:
        more = len(timeline.unfinished) - 1
        yield f"At the end, {each.said()}{f', and {more} more' if more else ''}."


def _parts_sentence(steps: pd.DataFrame, step: float) -> str:
    inside = steps[[TRANSFER, COPIES, WAITING, UNSPLIT]]
    whole, parts = inside.sum(axis=1).median(), inside.median()
    said = [
        f"{milliseconds(parts[TRANSFER])} in the collective",
        f"{milliseconds(parts[COPIES])} to and from the fusion buffer",
    ]
    if parts[WAITING]:
        said.append(f"{milliseconds(parts[WAITING])} waiting for data")
    if parts[UNSPLIT]:
        said.append(f"{milliseconds(parts[UNSPLIT])} that the timeline does not split")
    return (
        f"Horovod's operations take {milliseconds(whole)} of it ({whole / step:.0%}): "
        f"{', '.join(said)}."
    )


def _exposed_sentence(steps: pd.DataFrame, step: float) -> str:
    low, high = steps["exposed_low"].median(), steps["exposed_high"].median()
    exposed = (
        f"Estimated: the step is {milliseconds(low)} to {milliseconds(high)} longer "
        f"({low / step:.0%} to {high / step:.0%}) by what follows the last gradient of rank 0"
    )
    waited = steps["waited"].dropna()
    if len(waited) < len(steps) / 2:
        return (
            f"{exposed}. The moment when rank 0 had it is not recorded. So the larger bound also "
            "contains the time until the slowest rank was ready."
        )
    return f"{exposed}. Of this it waits {milliseconds(waited.median())} for slower ranks."


def _wait_sentences(timeline: Timeline) -> Iterator[str]:
    waits = timeline.waits
    if timeline.ranks == {0}:
        yield (
            "The timeline is of one process, which exchanges nothing. Start two or more, "
            "horovodrun -np 2, to see what an exchange takes."
        )
        return
    if waits.empty:
        yield (
            "The timeline does not record which rank was last. HOROVOD_CACHE_CAPACITY=0 makes "
            "Horovod record it, and costs time."
        )
        return
    last = waits["last"].value_counts(normalize=True)
    slowest_waits = waits.loc[waits["last"] == last.index[0], "seconds"]
    yield (
        f"Rank {last.index[0]} is the last in {last.iloc[0]:.0%} of {len(waits)} negotiations; "
        f"the first one then waits {milliseconds(slowest_waits.median())}."
    )


def _operation_sentences(timeline: Timeline) -> Iterator[str]:
    operations, per_step = timeline.operations, timeline.steps["operations"]
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
        f"The largest one has {size(sent)} and takes {milliseconds(seconds)} "
        f"({sent / seconds / 1e6:.0f} MB/s)."
    )
