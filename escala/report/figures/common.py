"""Provide helpers of all figures: style, names of configurations, titles, notes and saving."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

from escala.core.files import atomic
from escala.report.figures.looks import MARKERS, Colour, described, significant
from escala.report.tables.views import MOST, any_ok, fitted_workloads, labelled, untested
from escala.runtime.layout import Layout

Tables = Mapping[str, pd.DataFrame]

#: The qualitative scheme *muted* of Paul Tol (SRON/EPS/TN/09-002, 2021), for all but strategies.
MUTED = (
    "#CC6677", "#332288", "#DDCC77", "#117733", "#88CCEE", "#882255", "#44AA99", "#999933",
    "#AA4499",
)  # fmt: skip
#: Colours of ordered names run from one of these positions in `viridis` to the other.
ORDERED_FROM, ORDERED_TO = 0.85, 0.05
DPI = 150

# In points, the values of `style`.
FIGURE_TITLE, PANEL_TITLE, LABEL, LEGEND, NOTE = 12.0, 10.0, 9.25, 9.0, 8.0
_POINTS_PER_INCH, _LINE_SPACING = 72, 1.25
# The largest width of names of configurations and classes in a figure, in inches.
NAME_INCHES = 2.0
# The line or patch beside a legend's name, with its margins.
_HANDLE_INCHES = 0.65


@contextmanager
def style() -> Iterator[None]:
    """Draw and save in the project's style; text stays text in SVG, and files are reproducible."""
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "escala",
        # Reasons of failures come from other programs: a dollar sign must not begin a formula.
        "text.parse_math": False,
        "axes.titlesize": PANEL_TITLE,
        "figure.titlesize": FIGURE_TITLE,
        "legend.frameon": False,
        "legend.fontsize": LEGEND,
        "legend.title_fontsize": LEGEND,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with (
        sns.axes_style("whitegrid"),
        sns.plotting_context("paper", font_scale=1.05),
        mpl.rc_context(settings),
    ):
        yield


def new(width: float, height: float) -> Figure:
    """Return an empty figure, in inches, with a layout that fits its content.

    It has no canvas to draw on before it is saved. On one, seaborn would draw the whole figure for
    each heat map, to see whether its labels overlap.
    """
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, *paths: Path) -> None:
    """Write a figure in the formats of the paths' suffixes; the same figure gives equal bytes."""
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        with atomic(path) as temporary:
            figure.savefig(
                temporary, dpi=DPI, metadata=metadata, bbox_inches="tight", pad_inches=0.1
            )


def palette(names: Sequence[str]) -> dict[str, Colour]:
    """Return a colour per name. The first nine differ also for colour-blind readers.

    They differ from those of the strategies.
    """
    colours = MUTED if len(names) <= len(MUTED) else sns.color_palette("husl", len(names))
    return {name: mpl.colors.to_rgb(colour) for name, colour in zip(names, colours, strict=False)}


def ordered_palette(names: Sequence[str]) -> dict[str, Colour]:
    """Return a colour per name, from light to dark, for names that have an order."""
    shades = np.linspace(ORDERED_FROM, ORDERED_TO, len(names))
    return {name: mpl.colormaps["viridis"](at)[:3] for name, at in zip(names, shades, strict=True)}


def markers(names: Sequence[str]) -> dict[str, str]:
    """Return a marker per name, so that colour is not the only difference."""
    return {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(names)}


def with_nodes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the columns `nodes` and `processes` (of a node) of each layout."""
    layouts = [Layout.parse(layout) for layout in frame["layout"]]
    return frame.assign(
        nodes=[layout.nodes for layout in layouts],
        processes=[layout.processes for layout in layouts],
    )


def panels_by_nodes(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Split a table into the panels of a figure by nodes, each with its title.

    A panel shows one dataset, workload, strategy and variant, in order of appearance.
    """
    parts = frame.groupby(["dataset", "workload", "strategy", "variant"], sort=False)
    return [
        (f"{strategy} {variant}: {panel_title(workload, part, several=True)}", part)
        for (_, workload, strategy, variant), part in parts
    ]


def reference_name(compared: pd.DataFrame) -> str:
    """Return what rows of a table are compared with: one configuration, or what they share with it.

    References differ in the parts that they take of the compared configuration.
    """
    labels = compared["reference_label"].unique()
    if len(labels) == 1:
        return labels[0]
    taken = [key for key in ("variant", "network") if compared[f"reference_{key}"].nunique() > 1]
    return f"the reference of the same {' and '.join(taken)}"


def panels(frame: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    """Split a table by dataset and workload, in order of appearance."""
    return list(frame.groupby(["dataset", "workload"], sort=False))


def panel_title(workload: str, frame: pd.DataFrame, several: bool) -> str:
    """Return the title of a panel, empty if there is only one panel."""
    return f"{described(frame)}, {workload}" if several else ""


def title(figure: Figure, what: str, frame: pd.DataFrame) -> None:
    """Put a title and the names of the data above a figure, which grows by them."""
    head(figure, what, described(frame))


def head(figure: Figure, *parts: str) -> None:
    """Put texts above a figure, each on lines of its own; the figure grows by them."""
    text = "\n".join(wrap(part, _text_inches(figure), FIGURE_TITLE) for part in parts)
    _grow(figure, text, FIGURE_TITLE)
    figure.suptitle(text)
    _center_legend(figure)


def legend_of(figure: Figure, axes: Iterable[Axes], heading: str) -> None:
    """Put one legend beside a figure, with each name in its axes once."""
    handles = _handles(axes)
    legend(figure, list(handles.values()), list(handles), heading)


def legend_below(figure: Figure, axes: Iterable[Axes], heading: str) -> None:
    """Put one legend between axes and notes, with each name in the axes once.

    The figure grows by it, and stays as narrow as its axes. It is put last.
    """
    handles, spacing = _handles(axes), 0.5
    names = wrapped_names(handles, LEGEND)
    lines = [line for name in names for line in name.split("\n")]
    widest = max(text_width(line, LEGEND) for line in lines) + _HANDLE_INCHES
    columns = min(len(names), max(1, int(_text_inches(figure) / widest)))
    rows = -(-len(names) // columns)
    tallest = max(name.count("\n") + 1 for name in names)
    inches = _inches(1 + rows * tallest + spacing * (rows + 3), LEGEND)
    figure.set_figheight(figure.get_figheight() + inches)
    share = inches / figure.get_figheight()
    figure.get_layout_engine().set(rect=(0, share, 1, 1 - share))
    figure.legend(
        handles.values(), names, loc="lower center", title=heading, ncols=columns,
        labelspacing=spacing,
    )  # fmt: skip
    _center_legend(figure)


def _handles(axes: Iterable[Axes]) -> dict[str, Artist]:
    """Return what stands for each name in a legend, by the name."""
    handles: dict[str, Artist] = {}
    for part in axes:
        for handle, label in zip(*part.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    return handles


def legend(
    figure: Figure, handles: Sequence[Artist], names: Sequence[str], heading: str, spacing=0.5
) -> None:
    """Put a legend beside a figure, which grows until the legend's height fits."""
    wrapped = wrapped_names(names, LEGEND)
    lines = [line for name in [heading, *wrapped] for line in name.split("\n")]
    height = _inches(len(lines) + spacing * (len(names) + 2), LEGEND)
    figure.set_figheight(max(figure.get_figheight(), height + 0.2))
    width = max(text_width(line, LEGEND) for line in lines) + _HANDLE_INCHES
    figure.get_layout_engine().set(rect=(0, 0, 1 - width / figure.get_figwidth(), 1))
    figure.legend(handles, wrapped, loc="center right", title=heading, labelspacing=spacing)
    _center_legend(figure)


def note(figure: Figure, lines: Iterable[str]) -> None:
    """Put notes below a figure, which grows by them."""
    text = "\n".join(wrap(" ".join(line.split()), _text_inches(figure), NOTE) for line in lines)
    if text:
        _grow(figure, text, NOTE)
        figure.supxlabel(text, x=0.01, ha="left", fontsize=NOTE)
        _center_legend(figure)


def _text_inches(figure: Figure) -> float:
    return 0.96 * figure.get_figwidth()


def _grow(figure: Figure, text: str, points: float) -> None:
    figure.set_figheight(figure.get_figheight() + _text_height(text, points))


def _center_legend(figure: Figure) -> None:
    """Put a legend beside the axes, and not beside the title or the notes."""
    height = figure.get_figheight()
    above = _text_height(figure.get_suptitle(), FIGURE_TITLE) / height
    below = _text_height(figure.get_supxlabel(), NOTE) / height
    for beside in figure.legends:
        beside.set_bbox_to_anchor((0, below, 1, 1 - above - below), figure.transFigure)


def _text_height(text: str, points: float) -> float:
    return _inches(text.count("\n") + 1, points) if text else 0.0


def _inches(lines: float, points: float) -> float:
    return lines * points * _LINE_SPACING / _POINTS_PER_INCH


def cut_short(frame: pd.DataFrame) -> np.ndarray:
    """Return a line that marks rows of estimated times, for the end of their names."""
    return np.where(frame["kind"] == "estimated", "\n(estimated)", "")


def wrapped_names(names: Iterable[str], points: float = LABEL) -> list[str]:
    """Break names that are wider than `NAME_INCHES` into lines."""
    return [wrap(name, NAME_INCHES, points) for name in names]


def name_height(names: Iterable[str], points: float = LABEL) -> float:
    """Return the height in inches of the tallest of some names, at least a line."""
    return _inches(max((name.count("\n") + 1 for name in names), default=1), points)


def wrap(text: str, inches: float, points: float) -> str:
    """Break a text into lines of at most that width.

    Lines end at spaces, except no-break spaces. A longer word is broken after a hyphen or an
    underscore, and one without these anywhere. Line breaks of the text are kept.
    """
    return "\n".join(line for part in text.split("\n") for line in _lines(part, inches, points))


def _lines(text: str, inches: float, points: float) -> list[str]:
    lines = [""]
    for word in re.findall(r"[^\S\xa0]*[\S\xa0]+", text):
        if text_width(lines[-1] + word, points) <= inches:
            lines[-1] += word
        elif text_width(word.strip(), points) <= inches:
            lines.append(word.strip())
        else:
            pieces = re.findall(r"[^-_]*[-_]|[^-_]+", word if lines[-1] else word.strip())
            for piece in pieces:
                fits = text_width(piece.strip(), points) <= inches
                for part in [piece] if fits else list(piece):
                    if text_width(lines[-1] + part, points) <= inches:
                        lines[-1] += part
                    else:
                        lines.append(part.strip())
    return [line for line in lines if line] or [""]


@cache
def text_width(text: str, points: float) -> float:
    """Return the width of a line in inches, in the style's font."""
    font = FontProperties(size=points)
    width, _, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return width / _POINTS_PER_INCH


def network_names(runs: pd.DataFrame, networks: Iterable[str]) -> dict[str, str]:
    """Return a name with the measured rate in Mbit/s of each network.

    The slowest comes first, and last those whose rate was not measured.

    Parameters
    ----------
    runs : the table of runs. The rate is the median of the latest runs that ended ok.
    """
    ended_ok = runs[runs["current"] & (runs["status"] == "ok")]
    rates = ended_ok.groupby("network")["mbit_per_second"].median().dropna()
    slowest_first = sorted(networks, key=lambda name: rates.get(name, np.inf))
    return {
        name: f"{name}: {significant(rates[name])}" if name in rates else name
        for name in slowest_first
    }


def gaps(runs: pd.DataFrame) -> list[str]:
    """Return a note on the runs that have no result, if there are any."""
    current = labelled(runs, runs)[lambda frame: frame["current"]]
    failed = current[current["status"] != "ok"]
    if failed.empty:
        return []
    several = len(panels(runs)) > 1
    groups = failed.groupby(["dataset", "workload", "label", "status"], sort=False)["repeat"]
    parts = [
        (f"{dataset} {workload} " if several else "")
        + f"{label} rep {', '.join(map(str, repeats))} ({status})"
        for (dataset, workload, label, status), repeats in groups
    ]
    more = [f"and {len(parts) - MOST} more"] * (len(parts) > MOST)
    return [f"Without result: {'; '.join(parts[:MOST] + more)}. Reasons are in runs.csv."]


def left_out(tables: Tables) -> list[str]:
    """Return a note on the workloads that a figure of epochs leaves out, if there are any."""
    names = fitted_workloads(tables)
    return [f"Not shown, as they are fitted at once: {', '.join(names)}."] if names else []


def not_all(tables: Tables, shown: Tables) -> list[str]:
    """Return a note on the configurations that a figure leaves out, if there are any.

    Parameters
    ----------
    tables, shown : all those that the figure is about, and the result of `views.fastest`.
    """
    every, kept = (len(each["configurations"]) for each in (tables, shown))
    text = f"Shown are the fastest configurations, with their references: {kept} of {every}."
    return [f"{text} All are in the tables."] * (kept < every)


def not_scored(tables: Tables) -> list[str]:
    """Return a note on the classes that have no test rows, if there are any."""
    names = untested(tables["pooled"])
    return [f"No test rows, hence no scores: {', '.join(names)}."] if names else []


def without_data(what: str, tables: Tables, lacking: str) -> Figure:
    """Return a figure with the reason why there is nothing to show.

    Parameters
    ----------
    lacking : what the runs that ended ok do not have, if any ended ok.
    """
    runs = tables["runs"]
    if any_ok(tables):
        return empty(what, described(runs), f"No run that ended ok has {lacking}.")
    why = "; ".join(
        f"{label}: {status}" + ("" if pd.isna(reason) else f" ({reason})")
        for label, status, reason in labelled(runs, runs)[["label", "status", "reason"]]
        .drop_duplicates()
        .itertuples(index=False)
    )
    return empty(what, described(runs), f"No run ended ok. {why}")


def nothing_trained_by_steps(what: str, tables: Tables) -> Figure:
    """Return a figure with the message that nothing was trained by steps."""
    return empty(what, described(tables["runs"]), " ".join(left_out(tables)))


def empty(what: str, data: str, why: str) -> Figure:
    """Return a figure with a title and, in place of axes, the reason why there are none."""
    figure = new(8, 1.6)
    head(figure, what, data)
    why = textwrap.shorten(why, 600, placeholder=" …")
    figure.text(0.5, 0.35, wrap(why, 7, LABEL), ha="center", va="center", fontsize=LABEL)
    return figure


def grid(figure: Figure, count: int, columns: int) -> list[Axes]:
    """Return `count` axes in rows of at most `columns`, of equal size."""
    columns = min(columns, count)
    rows = -(-count // columns)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for spare in axes[count:]:
        spare.remove()
    return list(axes[:count])
