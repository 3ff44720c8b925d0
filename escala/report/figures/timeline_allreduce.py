"""Draw one allreduce of Horovod's timeline, of the operation that moves the most bytes."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from escala.probes.timeline import family, intervals, operations, ready, union_seconds
from escala.report.figures import OfRun
from escala.report.figures.common import NOTE, legend, name_height, new, note, wrap
from escala.report.figures.looks import shades
from escala.report.figures.one_run import heading, nothing
from escala.report.figures.timelines import COLOURS, read, short

CATEGORY = "Timelines"
BESIDE = "timeline.json"
MEASUREMENT = "timeline"
WHAT = "Horovod timeline of one allreduce"
MILLI = 1000


def draw(run: dict, shown: OfRun) -> Figure:
    """Draw every phase of the tensors that were reduced together, with durations in ms.

    Of the allreduces that move the most bytes, the one of median duration is drawn.

    Parameters
    ----------
    run : the content of its run.json.
    shown : its timeline.
    """
    events = read(shown)
    phases = intervals(events)
    chosen = largest_allreduce(phases)
    if chosen is None:
        why = "the timeline holds no finished allreduce" if events else "the run left no timeline"
        return nothing(WHAT, run, why)
    zoom = _phases_of(phases, chosen)
    tensors = list(chosen["tensor"])
    start = zoom["start_seconds"].min()
    zoom = zoom.assign(
        start=(zoom["start_seconds"] - start) * MILLI,
        length=(zoom["end_seconds"] - zoom["start_seconds"]) * MILLI,
    )
    rows = [
        wrap(f"{short(row.tensor)} ({_size(row.bytes)})", 2.4, NOTE) for row in chosen.itertuples()
    ]
    figure = new(11, max(2.4, max(0.3, name_height(rows, NOTE) + 0.05) * len(tensors) + 0.8))
    axes = figure.subplots()
    names = list(zoom["phase"].drop_duplicates())
    colours = shades({name: family(name) for name in names}, COLOURS)
    for phase in zoom.itertuples():
        row, inset = tensors.index(phase.tensor), 0.1 * phase.depth
        axes.barh(
            row, phase.length, 0.84 - 2 * inset, phase.start,
            color=colours[phase.phase], linewidth=0,
        )  # fmt: skip
    _mark_ready(axes, ready(events), tensors, zoom, start)
    axes.set_yticks(range(len(tensors)), rows, fontsize=NOTE)
    axes.set(xlabel="time (ms)", ylim=(len(tensors) - 0.4, -0.8))
    axes.grid(axis="y", visible=False)
    durations = {name: MILLI * union_seconds(zoom[zoom["phase"] == name]) for name in names}
    legend(
        figure,
        [Patch(color=colours[name]) for name in names],
        [f"{name}:\n{duration:.2f} ms" for name, duration in durations.items()],
        "phases",
        spacing=1,
    )
    count = f"{len(tensors)} fused tensors" if len(tensors) > 1 else "1 tensor"
    heading(figure, f"{WHAT}: {count}, {_size(chosen['bytes'].sum())}", run)
    note(
        figure,
        [
            "Seen by rank 0. Triangles: a rank was ready; negotiation mostly waits for the last of "
            "them. ALLREDUCE is the operation as a whole. Of the allreduces that move the most "
            f"bytes this is the one of median duration; its negotiation starts {start:.3f} s after "
            "Horovod did.",
        ],
    )
    return figure


def largest_allreduce(phases: pd.DataFrame) -> pd.DataFrame | None:
    """Return the whole-operation rows of one allreduce, or None if there is none.

    It is the one of median duration among those that move the most bytes.
    """
    numbered = phases.join(operations(phases), how="inner")
    numbered = numbered[(numbered["phase"] == "ALLREDUCE") & numbered["bytes"].notna()]
    if numbered.empty:
        return None
    groups = numbered.groupby("operation").agg(
        bytes=("bytes", "sum"), start=("start_seconds", "min"), end=("end_seconds", "max")
    )
    largest = groups[groups["bytes"] == groups["bytes"].max()]
    by_duration = (largest["end"] - largest["start"]).sort_values()
    number = by_duration.index[len(by_duration) // 2]
    return numbered[numbered["operation"] == number].sort_values("bytes", ascending=False)


def _phases_of(phases: pd.DataFrame, chosen: pd.DataFrame) -> pd.DataFrame:
    """Return the phases of an operation's tensors, from their negotiation to its end."""
    parts = []
    for whole in chosen.itertuples():
        mine = phases[phases["tensor"] == whole.tensor]
        before = mine[
            mine["phase"].str.startswith("NEGOTIATE_")
            & (mine["end_seconds"] <= whole.start_seconds)
        ]
        within = mine[
            (mine["start_seconds"] >= whole.start_seconds)
            & (mine["end_seconds"] <= whole.end_seconds)
        ]
        parts += [before.tail(1), within]
    return pd.concat(parts).sort_values(["start_seconds", "depth"], kind="stable")


def _mark_ready(
    axes: Axes, moments: pd.DataFrame, tensors: list[str], zoom: pd.DataFrame, start: float
) -> None:
    negotiation = zoom[zoom["phase"].str.startswith("NEGOTIATE_")]
    for span in negotiation.itertuples():
        mine = moments[
            (moments["tensor"] == span.tensor)
            & moments["seconds"].between(span.start_seconds, span.end_seconds)
        ]
        row = tensors.index(span.tensor)
        x = (mine["seconds"] - start) * MILLI
        axes.scatter(x, [row + 0.3] * len(mine), s=16, marker="^", color="black", zorder=3)
        if row == 0:
            for at, rank in zip(x, mine["rank"], strict=True):
                axes.annotate(
                    f"rank {rank}", (at, -0.45), (0, 2), textcoords="offset points",
                    ha="center", fontsize=7,
                )  # fmt: skip


def _size(count: float) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
