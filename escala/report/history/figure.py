"""Draw configurations over the sessions of a history."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.dates as dates
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from escala.analysis import changes
from escala.core.errors import InputError
from escala.report.figures import common
from escala.report.figures.common import LABEL, PANEL_TITLE, Colour, wrap
from escala.report.history.series import QUANTITIES, Series, by_digest

#: More panels than this cannot be read.
PANELS = 12
_WIDTH, _HEIGHT, _COLUMNS = 5.0, 2.7, 2
_DIGEST_SHOWN = 8


def draw(found: Sequence[Series], quantity: str = "time", **limits) -> Figure:
    """Draw the median of each session with its range, a panel for each configuration.

    Parameters
    ----------
    found : the result of `escala.report.history.series.series`.
    quantity : a name of `QUANTITIES`.
    limits : further arguments of `escala.analysis.changes.mark`.

    Raises
    ------
    InputError : there are more than `PANELS` panels.
    """
    label = QUANTITIES[quantity].label
    what = label.capitalize() + " over sessions"
    groups = by_digest(found)
    if not groups:
        return common.empty(what, "history", "The history has no such measurement.")
    if len(groups) > PANELS:
        raise InputError(
            "--where",
            f"{len(groups)} configurations",
            f"are more than the {PANELS} that a figure can show",
            "choose some, for example by --where \"layout = '1x2'\"",
        )
    colours = common.palette(list(dict.fromkeys(each.machines for each in found)))
    columns = min(_COLUMNS, len(groups))
    figure = common.new(_WIDTH * columns + 2.2, _HEIGHT * -(-len(groups) // columns))
    titles = [machines[0].title for machines in groups.values()]
    grid = common.grid(figure, len(groups), columns)
    for axes, ((_, digest), machines), title in zip(grid, groups.items(), titles, strict=True):
        for each in machines:
            _draw_series(axes, each, colours[each.machines], limits)
        which = f" (series {digest[:_DIGEST_SHOWN]})" if titles.count(title) > 1 else ""
        axes.set_title(wrap(title + which, _WIDTH - 0.8, PANEL_TITLE))
        axes.set(ylabel=wrap(label, _HEIGHT - 0.8, LABEL))
        axes.set_ylim(bottom=0)
        locator = dates.AutoDateLocator(minticks=3, maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    lines = {
        name: Line2D([], [], color=colour, marker="o", markersize=4, linewidth=1)
        for name, colour in colours.items()
    }
    grey = {"color": "0.3", "linewidth": 1}
    new_code = Line2D([], [], marker="o", markerfacecolor="white", markersize=4, **grey)
    change = Line2D([], [], linestyle="--", **grey)
    lines |= {"other code or versions": new_code, "change that recurs": change}
    common.legend(figure, lines, "machines")
    recurrence = limits.get("recurrence", changes.RECURRENCE)
    note = (
        "Points are medians over the repeats of a session, and bars their range. A change is "
        f"marked where {recurrence} sessions in a row show it."
    )
    common.finish(figure, [what], [note])
    return figure


def _draw_series(axes: Axes, found: Series, colour: Colour, limits: dict) -> None:
    frame = pd.DataFrame([each._asdict() for each in found.sessions])
    axes.plot(frame["started"], frame["value"], color=colour, linewidth=1)
    axes.vlines(frame["started"], frame["least"], frame["most"], color=colour, linewidth=1)
    renewed = [{"versions", "code"} & set(found.differs_from_before(n)) for n in frame.index]
    faces = ["white" if each else colour for each in renewed]
    axes.scatter(
        frame["started"], frame["value"], s=16, edgecolor=colour, facecolor=faces, zorder=3
    )
    for change in found.marks(**limits).changes:
        at = frame["started"][change.first]
        axes.axvline(at, color=colour, linestyle="--", linewidth=1)
        axes.annotate(
            f"{change.relative:+.0%}", (at, 0), (2, 2), xycoords=("data", "axes fraction"),
            textcoords="offset points", fontsize=7, color=colour,
        )  # fmt: skip
