"""Draw the efficiencies of POP: a matrix with a row for each configuration, by size."""

from __future__ import annotations

from matplotlib.figure import Figure

from escala.report.figures import common
from escala.report.figures.common import PANEL_TITLE, describe_data, wrap, wrap_names
from escala.report.tables.views import add_labels

CATEGORY = "Time"
CAPTION = (
    "What each configuration makes of its cores, in per cent, by the definitions of POP. Global = "
    "parallel × computation scaling, and parallel = load balance × communication, which is "
    "serialisation × transfer. Computation scaling is the useful time of the main reference for "
    "the same work, divided by that of the configuration. Useful time is a step without exposed "
    "exchange, in runs with clocks or traces, or else core time, with that of active waiting. The "
    "numbers are in the table ``efficiencies``."
)
NEEDS = "sizes"
WHAT = "Efficiencies by size"
_COLUMNS = {
    "global_efficiency": "global",
    "parallel_efficiency": "parallel",
    "load_balance": "load balance",
    "communication_efficiency": "communication",
    "serialisation_efficiency": "serialisation",
    "transfer_efficiency": "transfer",
    "computation_scaling": "computation\nscaling",
}


def draw(tables: common.Tables) -> Figure:
    """Draw a panel for each dataset and workload, by the source that knows most configurations."""
    shown, notes = common.select(tables, by_steps=True)
    table = add_labels(shown["efficiencies"], shown["runs"])
    known = table[table["kind"] != "unavailable"].sort_values("ranks")
    if known.empty:
        why = " ".join([*table["reason"].dropna().unique(), *notes])
        return common.empty(WHAT, describe_data(table), f"Not known: {why}")
    parts = []
    for names, frame in common.panels(known):
        # Of two sources that know as many configurations, this is `parts of steps`.
        source = frame["source"].mode().iloc[-1]
        parts.append((names, frame[frame["source"] == source]))
        notes = [f"{names[1]}: by {source}.", *notes]
    figure = common.new(8.4, sum(0.42 * len(frame) + 1.1 for _, frame in parts))
    heights = [len(frame) + 2 for _, frame in parts]
    grid = figure.subplots(len(parts), squeeze=False, height_ratios=heights)[:, 0]
    for axes, ((_, workload), frame) in zip(grid, parts, strict=True):
        per_cent = 100 * frame[[*_COLUMNS]].astype(float)
        common.heat_map(
            axes, per_cent, annot=True, fmt=".0f", vmin=0, vmax=100, cmap="Blues", linewidths=0.5,
            xticklabels=[*_COLUMNS.values()], yticklabels=wrap_names(frame["label"]),
        )  # fmt: skip
        axes.tick_params(axis="x", rotation=0)
        axes.tick_params(axis="y", rotation=0)
        title = common.panel_title(workload, frame, several=len(parts) > 1)
        axes.set_title(wrap(title, 7.0, PANEL_TITLE))
    common.finish(figure, [WHAT, describe_data(known)], notes)
    return figure
