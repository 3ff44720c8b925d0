"""Where the time of a step goes: what every rank's clocks and rank 0's timeline say of it.

A step of a rank lasts from before its rows are gathered until it has returned. Each part of it is
a set of intervals between moments that were measured: none is what the others leave over. Where
parts overlap, the instant counts once, for the first of them in the order of `PARTS`:

| part | from | to |
|---|---|---|
| input | gathering of the rows begins | it ends |
| dispatch | rows are gathered; all variables are updated | the compiled step begins; it returned |
| compute | the compiled step begins | the rank's last gradient is ready |
| optimiser | a gradient's sum over all ranks, or its factors, is there | its variable is updated |
| skew | a gradient is ready on this rank | it is on the slowest |
| transfer, copies | an operation of Horovod's begins to, on any tensor | it ends |
| negotiation | a gradient is ready on all ranks | Horovod's operation on it begins |

What a rank computes, and what it waits for the slowest to compute, comes first, so that an exchange
counts as long as nothing else goes on; the rest of it is overlap won. What no part covers is
unexplained. What is set against another rank's moments, or against rank 0's timeline, takes one
clock: for ranks under several kernels, as on nodes that are machines, such parts are unavailable.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from escala.probes import timeline
from escala.strategies.horovod import GRADIENT

#: Parts of a step; the first that covers an instant has it.
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


def of_run(run_file: Path, alone: bool, one_clock: bool) -> pd.DataFrame:
    """Return `summary` of a run that ended ok, from what stands beside its run.json.

    Parameters
    ----------
    alone : whether its strategy exchanges nothing.
    one_clock : whether all its processes read the same.

    Notes
    -----
    A process that holds several ranks has the clock of all of them, under its own number.
    """
    phases = _phases(run_file.with_name("timeline.json")) if one_clock else None
    steps = per_step(_clocks(run_file), phases)
    sources = {CLOCKS, *[ALL_CLOCKS] * one_clock, *[TIMELINE, BOTH] * (phases is not None)}
    return summary(steps, alone, sources)


def _clocks(run_file: Path) -> pd.DataFrame:
    # The moments of a whole step have no tensor; no variable's name is missing.
    return pd.concat(
        [
            pd.read_csv(path, keep_default_na=False).assign(
                rank=int(re.search(r"\d+", path.name)[0])
            )
            for path in sorted(run_file.parent.glob("ranks/rank*.clocks.csv"))
        ],
        ignore_index=True,
    )


def _phases(path: Path) -> pd.DataFrame | None:
    """Return the intervals of a timeline in seconds since the epoch, or None if there is none."""
    if not path.exists():
        return None
    events = timeline.repair(path)
    phases = timeline.intervals(events)
    phases[["start_seconds", "end_seconds"]] += timeline.started(events)
    return phases


def covered(parts: Mapping[str, Intervals], begins: float, ends: float) -> dict[str, float]:
    """Share the time between two moments among parts that may overlap.

    Parameters
    ----------
    parts : intervals of each, of shape (number, 2), in any order, in the order in which the parts
        come first.

    Returns
    -------
    Seconds that each part covers and none before it does, under its name; of the parts `EXCHANGE`
    what others have taken, as `overlap`; and what none covers, as `unexplained`.
    """
    cuts = np.unique(np.clip(np.concatenate([*parts.values(), [[begins, ends]]]), begins, ends))
    seconds, middles = np.diff(cuts), (cuts[1:] + cuts[:-1]) / 2
    covers = np.array([_contains(intervals, middles) for intervals in parts.values()])
    taken = np.cumsum(covers, axis=0)
    alone = dict(zip(parts, (covers & (taken == 1)) @ seconds, strict=True))
    of_exchange = covers[[name in EXCHANGE for name in parts]].any(axis=0)
    exchanged = sum(alone[name] for name in EXCHANGE if name in parts)
    return alone | {
        OVERLAP: of_exchange @ seconds - exchanged,
        UNEXPLAINED: (taken[-1] == 0) @ seconds,
    }


def _contains(intervals: Intervals, moments: np.ndarray) -> np.ndarray:
    """Return for each moment whether any interval contains it."""
    starts, ends = intervals[:, :1], intervals[:, 1:]
    return ((starts <= moments) & (moments < ends)).any(axis=0)


def per_step(clocks: pd.DataFrame, phases: pd.DataFrame | None) -> pd.DataFrame:
    """Return the seconds of every part, of every step of every rank.

    Parameters
    ----------
    clocks : those of all ranks, in the columns of `rank{r}.clocks.csv` and `rank`.
    phases : of Horovod's timeline, in seconds since the epoch; None if there is none.

    Returns
    -------
    One row per rank, epoch and step, and a column for each of `PARTS`, `overlap`, `unexplained`
    and `whole`. Without moments inside the step there are `input` and `whole` alone.
    """
    whole = clocks[clocks["tensor"] == ""].pivot(index=_STEP, columns="moment", values="seconds")
    steps = whole["returned"] - whole["gather_begins"]
    if "step_begins" not in whole:
        gathering = whole["gather_ends"] - whole["gather_begins"]
        return pd.DataFrame({"input": gathering, WHOLE: steps})
    tensors = clocks[clocks["tensor"] != ""].pivot(
        index=["rank", *_TENSOR], columns="moment", values="seconds"
    )
    slowest = tensors["gradient_ready"].groupby(_TENSOR).transform("max").rename("all_ready")
    tensors = tensors.join(slowest)
    exchanges = _exchanges(slowest, phases)
    rows = []
    for step, moments in whole.iterrows():
        parts = _of_rank(moments, tensors.loc[step]) | exchanges
        window = moments[["gather_begins", "returned"]]
        rows.append(covered({name: parts[name] for name in PARTS}, *window))
    return pd.DataFrame(rows, index=whole.index).assign(**{WHOLE: steps})


def _of_rank(moments: pd.Series, tensors: pd.DataFrame) -> dict[str, Intervals]:
    """Return the parts of a step that the clocks of the ranks tell."""
    computed, updated = tensors["gradient_ready"].max(), tensors["updated"].max()
    return {
        "input": moments[["gather_begins", "gather_ends"]].to_numpy()[None],
        "dispatch": np.array(
            [[moments["gather_ends"], moments["step_begins"]], [updated, moments["returned"]]]
        ),
        "compute": np.array([[moments["step_begins"], computed]]),
        "optimiser": tensors[["exchanged", "updated"]].to_numpy(),
        "skew": tensors[["gradient_ready", "all_ready"]].to_numpy(),
    }


def _exchanges(all_ready: pd.Series, phases: pd.DataFrame | None) -> dict[str, Intervals]:
    """Return the parts of all steps that need the timeline; nothing of each where there is none."""
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


def summary(steps: pd.DataFrame, alone: bool, sources: Collection[str]) -> pd.DataFrame:
    """Summarise the parts over the steps of each rank.

    Parameters
    ----------
    steps : as `per_step` returns them.
    alone : whether nothing is exchanged, so that all parts of an exchange are 0.
    sources : those of `SOURCES` that there are. Only rank 0 writes the timeline: what it says of
        the other ranks is estimated.

    Returns
    -------
    One row per rank and part: `rank`, `part`, `median_seconds`, `low_seconds` and `high_seconds`
    (quartiles), `share` (of the median step), `steps`, `source` and `kind`.
    """
    rows = []
    for rank, group in steps.groupby(level="rank"):
        for part in (*PARTS, OVERLAP, UNEXPLAINED, WHOLE):
            row = {"rank": rank, "part": part, "steps": len(group), "source": SOURCES[part]}
            if part not in group or not (alone or SOURCES[part] in sources):
                rows.append(row | {"source": None, "kind": "unavailable"})
                continue
            low, median, high = group[part].quantile([0.25, 0.5, 0.75])
            estimated = SOURCES[part] in (TIMELINE, BOTH) and rank != 0
            rows.append(
                row
                | {"median_seconds": median, "low_seconds": low, "high_seconds": high}
                | {"share": median / group[WHOLE].median()}
                | {"kind": "estimated" if estimated else "measured"}
                | ({"source": CLOCKS} if alone else {})
            )
    return pd.DataFrame(rows)
