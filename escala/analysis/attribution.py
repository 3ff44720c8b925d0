"""Divide the time of a step among its parts (`escala.analysis.parts`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from escala.analysis.parts import (
    EXCHANGE,
    PARTS,
    PASSES,
    WORK,
    Intervals,
    losses,
    parts_of_steps,
    whole_steps,
)
from escala.probes import timeline
from escala.probes.clocks import COLUMNS, FORWARD_ENDS, SAMPLED, UPDATE_BEGINS

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
    unsampled = {each: [""] for each in SAMPLED}
    clocks = [
        pd.read_csv(path, keep_default_na=False, na_values=unsampled).assign(
            rank=int(re.search(r"\d+", path.name)[0])
        )
        for path in clocks_files(run_file)
    ]
    phases, path = None, run_file.with_name("timeline.json")
    if one_clock and path.exists():
        events = timeline.repair(path)
        phases = timeline.intervals(events)
        phases[["start_seconds", "end_seconds"]] += timeline.started(events)
    return pd.concat(clocks, ignore_index=True).reindex(columns=[*COLUMNS, "rank"]), phases


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
        row = covered(parts, *window) | {OFF_CORE: np.nan}
        if step in lost.index:
            row |= _off_core(row, parts, lost.loc[[step]].itertuples(index=False))
        rows.append(row)
    parts = pd.DataFrame(rows, index=whole.index)
    if FORWARD_ENDS in whole:
        parts["compute"] = parts[[*PASSES]].sum(axis=1)
    return parts.assign(**{WHOLE: steps})


def _off_core(
    row: Mapping[str, float], parts: Mapping[str, Intervals], times: Iterable[tuple]
) -> dict[str, float]:
    """Return `row` with what was lost of the cores taken out of the parts `WORK`.

    Parameters
    ----------
    times : begin, end, and lost seconds of each time of the step in which the rank had work.
    """
    row = {**row, OFF_CORE: 0.0}
    for begins, ends, lost in times:
        within = covered(parts, begins, ends)
        work = {name: within[name] for name in WORK if name in within}
        fraction = min(1.0, lost / max(sum(work.values()), 1e-9))
        for name, seconds in work.items():
            row[name] -= fraction * seconds
            row[OFF_CORE] += fraction * seconds
    return row


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
    passes = [each for each in PASSES if each in steps]
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
