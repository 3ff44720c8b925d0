"""Draw configurations over the sessions of a history."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.dates as dates
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from escala.analysis import changes
from escala.core.errors import InputError
from escala.report.figures.common import (
    LABEL,
    PANEL_TITLE,
    empty,
    grid,
    head,
    legend,
    new,
    note,
    palette,
    wrap,
)
from escala.report.figures.looks import Colour
from escala.report.history.series import QUANTITIES, Series, by_digest, renewed

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
    what = QUANTITIES[quantity].label.capitalize() + " over sessions"
    groups = by_digest(found)
    if not groups:
        return empty(what, "history", "The history has no such measurement.")
    if len(groups) > PANELS:
        raise InputError(
            "--where",
            f"{len(groups)} configurations",
            f"are more than the {PANELS} that a figure can show",
            "choose some, for example by --where \"layout = '1x2'\"",
        )
    colours = palette(list(dict.fromkeys(each.machines for each in found)))
    columns = min(_COLUMNS, len(groups))
    rows = -(-len(groups) // columns)
    figure = new(_WIDTH * columns + 2.2, _HEIGHT * rows)
    titles = [of_machines[0].title for of_machines in groups.values()]
    axes_of_panels = grid(figure, len(groups), columns)
    panels = zip(axes_of_panels, groups.items(), titles, strict=True)
    for axes, ((_, digest), of_machines), title in panels:
        for each in of_machines:
            _draw_series(axes, each, colours[each.machines], limits)
        beside = f" (series {digest[:_DIGEST_SHOWN]})" if titles.count(title) > 1 else ""
        axes.set_title(wrap(title + beside, _WIDTH - 0.8, PANEL_TITLE))
        axes.set(xlabel="", ylabel=wrap(QUANTITIES[quantity].label, _HEIGHT - 0.8, LABEL))
        axes.set_ylim(bottom=0)
        locator = dates.AutoDateLocator(minticks=3, maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    _legend(figure, colours)
    head(figure, what)
    note(figure, _notes(limits))
    return figure


def _draw_series(axes: Axes, found: Series, colour: Colour, limits: dict) -> None:
    frame = pd.DataFrame([each._asdict() for each in found.sessions])
    sns.lineplot(frame, x="started", y="value", color=colour, linewidth=1, errorbar=None, ax=axes)
    axes.vlines(frame["started"], frame["least"], frame["most"], color=colour, linewidth=1)
    new_code = pd.Series(renewed(found))
    for part, face in ((~new_code, colour), (new_code, "white")):
        shown = frame[part]
        axes.plot(
            shown["started"], shown["value"], "o", color=colour, markerfacecolor=face, markersize=4
        )
    for change in found.marks(**limits).changes:
        at = frame["started"][change.first]
        axes.axvline(at, color=colour, linestyle="--", linewidth=1)
        axes.annotate(
            f"{change.relative:+.0%}",
            (at, 0),
            (2, 2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            fontsize=7,
            color=colour,
        )


def _legend(figure: Figure, colours: dict[str, Colour]) -> None:
    lines = [
        Line2D([], [], color=colour, marker="o", markersize=4, linewidth=1)
        for colour in colours.values()
    ]
    grey = {"color": "0.3", "linewidth": 1}
    renewed_point = Line2D([], [], marker="o", markerfacecolor="white", markersize=4, **grey)
    change = Line2D([], [], linestyle="--", **grey)
    names = [*colours, "other code or versions", "change that recurs"]
    legend(figure, [*lines, renewed_point, change], names, "machines")


def _notes(limits: dict) -> list[str]:
    recurrence = limits.get("recurrence", changes.RECURRENCE)
    return [
        "Points are medians over the repeats of a session, and bars their range. A change is "
        f"marked where {recurrence} sessions in a row show it."
    ]
