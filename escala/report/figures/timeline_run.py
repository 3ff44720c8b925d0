"""Draw Horovod's timeline of a whole timeline run, with a row per tensor."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from escala.probes.timeline import FAMILIES, OTHER, family, intervals, union_seconds
from escala.report.figures import OfRun
from escala.report.figures.common import legend, new, note
from escala.report.figures.one_run import heading, nothing
from escala.report.figures.timelines import COLOURS, read, short, spans

CATEGORY = "Timelines"
BESIDE = "timeline.json"
MEASUREMENT = "timeline"
WHAT = "Horovod timeline of a whole run"
MOST_TENSORS = 60


def draw(run: dict, shown: OfRun) -> Figure:
    """Draw the phases of every tensor over time, with the seconds each kind covers.

    Parameters
    ----------
    run : the content of its run.json.
    shown : its timeline.
    """
    phases = intervals(read(shown))
    if phases.empty:
        return nothing(WHAT, run, "the run left no timeline")
    phases = phases.assign(family=phases["phase"].map(family))
    names = list(phases["tensor"].drop_duplicates())
    first = names[:MOST_TENSORS]
    figure = new(11, max(2.4, 0.2 * len(first) + 0.6))
    axes = figure.subplots()
    # Parts are drawn over their operation, so only the rest of the operation is visible.
    for (_, kind), group in phases.groupby(["depth", "family"]):
        for row, tensor in enumerate(first):
            of_tensor = group[group["tensor"] == tensor]
            axes.broken_barh(
                spans(of_tensor), (row - 0.42, 0.84), facecolor=COLOURS[kind], linewidth=0
            )
    axes.set_yticks(range(len(first)), map(short, first), fontsize=7)
    axes.set(xlabel="time since Horovod started (s)", ylim=(len(first) - 0.4, -0.6))
    axes.grid(axis="y", visible=False)
    totals = covered_seconds(phases)
    legend(
        figure,
        [Patch(color=COLOURS[kind]) for kind in totals],
        [f"{kind}:\n{seconds:.3f} s" for kind, seconds in totals.items()],
        "time that at least\none tensor spent",
        spacing=1,
    )
    heading(figure, WHAT, run)
    hidden = len(names) - len(first)
    note(
        figure,
        ["Seen by rank 0; times of different kinds overlap."]
        + [f"{hidden} more tensors are in trace.json."] * (hidden > 0)
        + [f"The run ended as {run['status']}: {run['reason']}."] * (run["status"] != "ok"),
    )
    return figure


def covered_seconds(phases: pd.DataFrame) -> dict[str, float]:
    """Return the seconds that at least one tensor spent in each family of phases.

    Time of an operation outside all of its parts counts as the rest.
    """
    kinds = phases["phase"].map(family)
    waiting, *parts = FAMILIES
    operations, within = phases[kinds != waiting], phases[kinds.isin(parts)]
    seconds = {
        kind: union_seconds(phases[kinds == kind]) for kind in FAMILIES if (kinds == kind).any()
    }
    return seconds | {OTHER: union_seconds(operations) - union_seconds(within)}
