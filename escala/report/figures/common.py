"""Provide the frame of all figures: style, colours, legends, titles and notes, and saving."""

from __future__ import annotations

import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

# A terminal in a notebook inherits the notebook's backend, which cannot draw here.
os.environ["MPLBACKEND"] = "agg"

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.core.files import atomic
from escala.report.tables import views
from escala.report.tables.views import MOST, add_labels
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES

Colour = tuple[float, float, float]

MARKERS = "osD^vPX*<>phHd8"
_LINES, _FILLS = ("-", "--", "-.", ":"), ("full", "none")
Tables = Mapping[str, pd.DataFrame]
#: Seaborn's palette *colorblind*, each colour as much darker as its contrast with white needs, and
#: as keeps strategies apart for colour-blind readers.
_COLOURBLIND = (
    "#006197", "#ce8404", "#016e50", "#743300", "#cb78bc", "#bf895b", "#67475e", "#676767",
    "#87811a", "#336d8e",
)  # fmt: skip
#: The qualitative scheme *muted* of Paul Tol (SRON/EPS/TN/09-002, 2021), darkened alike. Strategies
#: have other colours.
MUTED = (
    "#cb6577", "#332288", "#a29555", "#117733", "#669bb6", "#882255", "#41a493", "#999933",
    "#a94499",
)  # fmt: skip
#: Thin lines and edges in grey; the points of single runs are circles.
GREY, CIRCLES = "0.5", {"facecolors": "none", "linewidth": 0.8}
DPI = 150
#: Sizes of texts in points.
FIGURE_TITLE, PANEL_TITLE, LABEL, LEGEND, NOTE = 12.0, 10.0, 9.25, 9.0, 8.0
#: The largest width of names of configurations and classes in a figure, in inches.
NAME_INCHES = 2.0
# The mean width of a letter and the distance of lines, as multiples of the size of a text.
_LETTER, _LINE = 0.57, 1.25
# Inches in a figure for phones: its width, names, values, and the space above and below marks.
NARROW, NAME_ABOVE, VALUE_ABOVE, ABOVE, BELOW = 4.6, 3.15, 1.15, 0.16, 0.2

# The identifier of an SVG group whose text is shown begins with this. `save` makes it a title.
_TITLE = "title:"


@contextmanager
def style() -> Iterator[None]:
    """Set the project's style for drawing and saving, until the block ends.

    Text stays text in SVG, and equal figures give equal bytes.
    """
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
    with mpl.rc_context():
        mpl.rcdefaults()  # These settings replace a user's matplotlibrc.
        with (
            sns.axes_style("whitegrid"),
            sns.plotting_context("paper", font_scale=1.05),
            mpl.rc_context(settings),
        ):
            yield


def new(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, with a layout that fits its content.

    The figure has no canvas before `save`. With a canvas, seaborn would draw the whole figure for
    each heat map, to see whether labels overlap.
    """
    return Figure(figsize=(width, height), layout="constrained")


def add_tooltip(artist: Artist, text: str) -> None:
    """Give an artist a text that readers of the SVG see when they point at the artist."""
    artist.set_gid(_TITLE + text)


def save(figure: Figure, *paths: Path) -> None:
    """Write a figure in the formats of the paths' suffixes; the same figure gives equal bytes."""
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        with atomic(path) as temporary:
            figure.savefig(
                temporary, dpi=DPI, metadata=metadata, bbox_inches="tight", pad_inches=0.1
            )
            if path.suffix == ".svg":
                # Matplotlib writes no titles. In identifiers it escapes the text.
                group = rf'<g id="{_TITLE}([^"]*)">'
                title = r'<g class="has-tooltip"><title>\1</title>'
                svg = re.sub(group, title, temporary.read_text(encoding="utf-8"))
                temporary.write_text(svg, encoding="utf-8")


def wrap(text: str, width: float, points: float) -> str:
    """Break a text of a size in points into lines of about `width` inches; keep its line breaks."""
    letters = max(1, int(width / text_width("m", points)))
    return "\n".join(textwrap.fill(part, letters) for part in text.split("\n"))


def wrap_names(names: Iterable[str], points: float = LABEL) -> list[str]:
    """Break names that are wider than `NAME_INCHES` into lines."""
    return [wrap(name, NAME_INCHES, points) for name in names]


def text_width(text: str, points: float) -> float:
    """Return the approximate width of a line in inches, of a size in points."""
    return len(text) * points * _LETTER / 72


def height_of(names: Iterable[str], points: float = LABEL) -> float:
    """Return the height in inches of the tallest of some names, at least a line."""
    return max((name.count("\n") + 1 for name in names), default=1) * points * _LINE / 72


def palette(names: Sequence[str]) -> dict[str, Colour]:
    """Return a colour per name, none of them a strategy's.

    Up to nine colours differ for colour-blind readers too.
    """
    colours = MUTED if len(names) <= len(MUTED) else sns.husl_palette(len(names), l=0.5)
    return {name: mpl.colors.to_rgb(colour) for name, colour in zip(names, colours, strict=False)}


def palette_in_order(names: Sequence[str]) -> dict[str, Colour]:
    """Return a colour per name, from light to dark, for names that have an order."""
    shades = np.linspace(0.55, 0.0, len(names))
    colours = mpl.colormaps["viridis"](shades)[:, :3]
    return {name: tuple(colour) for name, colour in zip(names, colours, strict=True)}


def markers(names: Sequence[str]) -> dict[str, str]:
    """Return a marker per name, so that colour is not the only difference."""
    return {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(names)}


def series(
    frame: pd.DataFrame, keys: Sequence[str]
) -> list[tuple[str, pd.DataFrame, dict[str, object]]]:
    """Return the name, the rows, and the colour and marker of each line of a figure.

    Parameters
    ----------
    keys : columns in which lines may differ. The name of a line has its values in the columns that
        vary.
    """
    groups = list(frame.groupby(list(keys), sort=False))
    varying = [key for key in keys if frame[key].nunique() > 1] or keys[:1]
    names = [" ".join(map(str, rows[varying].iloc[0])) for _, rows in groups]
    colours, shapes = palette(names), markers(names)
    return [
        (name, rows, {"color": colours[name], "marker": shapes[name]})
        for name, (_, rows) in zip(names, groups, strict=True)
    ]


def reference_name(compared: pd.DataFrame) -> str:
    """Return the label of the only reference of some rows, or words for several references."""
    labels = compared["reference_label"].unique()
    if len(labels) == 1:
        return labels[0]
    varying = [key for key in ("variant", "network") if compared[f"reference_{key}"].nunique() > 1]
    return f"the reference of the same {' and '.join(varying)}"


def name_rows(axes: Axes, rows: Sequence[tuple[str, str]], height: float, farthest: float) -> None:
    """Write a name at the left and a value at the right, above the marks of each row.

    A figure of `NARROW` inches, which fits a phone, has no room beside the marks.

    Parameters
    ----------
    rows : a name and a value for each row, from the top.
    height : of a row, in inches.
    farthest : the largest value that the axes show; the smallest is 0.
    """
    for place, row in enumerate(rows):
        for text, inches, x in zip(row, (NAME_ABOVE, VALUE_ABOVE), (0, 1), strict=True):
            axes.annotate(
                wrap(text, inches, LABEL), (x, place), (0, 72 * (ABOVE - 0.05)),
                xycoords=axes.get_yaxis_transform(), textcoords="offset points", va="bottom",
                ha="right" if x else "left", fontsize=LABEL,
            )  # fmt: skip
    below = BELOW / height
    axes.set(yticks=[], xlim=(0, 1.05 * farthest or 1), ylim=(len(rows) - 1 + below, below - 1))
    axes.locator_params(axis="x", nbins=5)


def height_with_names(rows: Iterable[tuple[str, str]]) -> float:
    """Return the height in inches of a row of `name_rows`, with its marks."""
    wrapped = [
        wrap(text, inches, LABEL)
        for row in rows
        for text, inches in zip(row, (NAME_ABOVE, VALUE_ABOVE), strict=True)
    ]
    return height_of(wrapped) + ABOVE + BELOW


def panels(frame: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    """Split a table by dataset and workload, in order of appearance."""
    return list(frame.groupby(["dataset", "workload"], sort=False))


def panel_title(workload: str, frame: pd.DataFrame, several: bool) -> str:
    """Return the title of a panel, empty if there is only one panel."""
    return f"{describe_data(frame)}, {workload}" if several else ""


def grid(figure: Figure, count: int, columns: int) -> list[Axes]:
    """Return `count` axes in rows of at most `columns`, of equal size."""
    axes = figure.subplots(-(-count // columns), min(columns, count), squeeze=False).ravel()
    for spare in axes[count:]:
        spare.remove()
    return list(axes[:count])


def error_bars(middle: float, low: float, high: float) -> list[list[float]]:
    """Return the lengths of an interval's bars below and above; 0 if an end is unknown."""
    return [[0], [0]] if pd.isna(low) or pd.isna(high) else [[middle - low], [high - middle]]


def select(
    tables: Tables, most: int = MOST, by_steps: bool = False
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Return the tables of the configurations in a figure, and notes on those left out.

    Parameters
    ----------
    most : the most configurations of a dataset and workload.
    by_steps : leave out workloads that are fitted at once.
    """
    notes = []
    if by_steps:
        if fitted := views.fit_workloads(tables):
            notes.append(f"Not shown, as they are fitted at once: {', '.join(fitted)}.")
        tables = views.without_fits(tables)
    shown = views.fastest(tables, most)
    number, number_shown = (len(frames["configurations"]) for frames in (tables, shown))
    if number_shown < number:
        notes.append(
            "Shown are the fastest configurations, with their references: "
            f"{number_shown} of {number}. All are in the tables."
        )
    return shown, [*notes, *gaps(shown["runs"])]


def gaps(runs: pd.DataFrame) -> list[str]:
    """Return a note on the runs that have no result, if there are any."""
    labelled = add_labels(runs, runs)
    current = labelled[labelled["current"]]
    failed = current[current["status"] != "ok"]
    several = len(panels(runs)) > 1
    groups = failed.groupby(["dataset", "workload", "label", "status"], sort=False)["repeat"]
    parts = [
        (f"{dataset} {workload} " if several else "")
        + f"{label} rep {', '.join(map(str, repeats))} ({status})"
        for (dataset, workload, label, status), repeats in groups
    ]
    if not parts:
        return []
    more = [f"and {len(parts) - MOST} more"] * (len(parts) > MOST)
    return [f"Without result: {'; '.join(parts[:MOST] + more)}. Reasons are in runs.csv."]


def without_data(title: str, tables: Tables, missing: str) -> Figure:
    """Return a figure with a title, and the reason why the runs have no data for it.

    Parameters
    ----------
    title : of the figure.
    missing : the data that are missing in the runs that ended ok.
    """
    runs = tables["runs"]
    why = f"No run that ended ok has {missing}."
    if not views.any_ok(tables):
        reasons = add_labels(runs, runs)[["label", "status", "reason"]].drop_duplicates()
        why = "No run ended ok. " + "; ".join(
            f"{label}: {status}" + ("" if pd.isna(reason) else f" ({reason})")
            for label, status, reason in reasons.itertuples(index=False)
        )
    return empty(title, describe_data(runs), why)


def empty(title: str, data: str, why: str) -> Figure:
    """Return a figure with a title and, in place of axes, the reason why there are none."""
    figure = new(8, 1.6)
    finish(figure, [title, data])
    wrapped = wrap(textwrap.shorten(why, 600, placeholder=" …"), 7, LABEL)
    figure.text(0.5, 0.35, wrapped, ha="center", va="center", fontsize=LABEL)
    return figure


def legend_of(figure: Figure, axes: Iterable[Axes], heading: str) -> None:
    """Put one legend alongside a figure, with each name of all axes once."""
    handles: dict[str, Artist] = {}
    for part in axes:
        for handle, label in zip(*part.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    legend(figure, handles, heading)


def legend(figure: Figure, handles: Mapping[str, Artist], heading: str) -> None:
    """Put a legend below a figure, which grows by it.

    The legend stands at the left and is at most `NARROW` wide, so a phone shows all of it.
    """
    wrapped, spacing = wrap_names(handles, LEGEND), 0.5
    # The line or patch of a name takes 0.65 inches, with its margins.
    width = 0.65 + max(text_width(line, LEGEND) for name in wrapped for line in name.split("\n"))
    columns = min(len(handles), max(1, int(NARROW / width)))
    rows = -(-len(handles) // columns)
    lines = 1 + max(name.count("\n") for name in wrapped)
    inches = (1 + rows * (lines + spacing) + 2 * spacing) * LEGEND * _LINE / 72
    height = figure.get_figheight() + inches
    figure.set_figheight(height)
    figure.get_layout_engine().set(rect=(0, inches / height, 1, 1 - inches / height))
    figure.legend(
        handles.values(), wrapped, loc="lower left", title=heading, labelspacing=spacing,
        ncols=columns, alignment="left",
    )  # fmt: skip


def finish(figure: Figure, heads: Sequence[str], notes: Iterable[str] = ()) -> None:
    """Put a title above a figure and notes below it; the figure grows by them.

    Draw everything else before: this function keeps legends between the axes and the notes.

    Parameters
    ----------
    heads, notes : texts, each of which begins a line.
    """
    width = 0.96 * figure.get_figwidth()
    above = "\n".join(wrap(part, width, FIGURE_TITLE) for part in heads)
    below = "\n".join(wrap(" ".join(line.split()), width, NOTE) for line in notes)
    top = height_of([above], FIGURE_TITLE)
    bottom = height_of([below], NOTE) if below else 0.0
    height = figure.get_figheight() + top + bottom
    below_axes = figure.get_layout_engine().get()["rect"][1] * figure.get_figheight() / height
    figure.get_layout_engine().set(rect=(0, below_axes, 1, 1 - below_axes))
    figure.set_figheight(height)
    figure.suptitle(above)
    if below:
        figure.supxlabel(below, x=0.01, ha="left", fontsize=NOTE)
    for drawn_legend in figure.legends:
        drawn_legend.set_bbox_to_anchor(
            (0, bottom / height, 1, 1 - (top + bottom) / height), figure.transFigure
        )


@dataclass(frozen=True)
class Look:
    """The colour, marker, line and filling of one series."""

    colour: Colour
    marker: str
    line: str
    fill: str


def strategy_look(strategy: str) -> Look:
    """Return the look that a strategy has in every figure.

    The look depends on the strategy's position in the registry, so a strategy added at the end gets
    the next colour. A strategy that only programs use shares its look with a strategy that programs
    do not use, because no experiment compares the two. A strategy that is not in the registry, from
    an old measurement, is black.
    """
    if strategy not in STRATEGIES:
        return Look((0.0, 0.0, 0.0), "x", "-", "full")
    of_engines = [name for name, known in STRATEGIES.items() if known.engine]
    if strategy in of_engines:
        place = of_engines.index(strategy)
    else:
        of_programs = [name for name in STRATEGIES if name not in of_engines]
        not_in_programs = [
            place for place, name in enumerate(of_engines) if not STRATEGIES[name].programs
        ]
        places = [*not_in_programs, *range(len(of_engines), len(STRATEGIES))]
        place = places[of_programs.index(strategy)]
    rounds, number = divmod(place, len(_COLOURBLIND))
    colour = mpl.colors.to_rgb(_COLOURBLIND[number])
    # After the palette come its darker colours.
    colour = shade(colour, 2) if rounds else colour
    return Look(colour, MARKERS[place % len(MARKERS)], "-", "full")


def looks(frame: pd.DataFrame) -> dict[str, Look]:
    """Return the look of every label of a table, in the order of the strategies.

    Labels of one strategy have its marker, and differ in shade, line and filling.

    Parameters
    ----------
    frame : a table with the columns `strategy` and `label`.
    """
    ordered = frame.loc[_places(frame["strategy"]).sort_values(kind="stable").index]
    rows = ordered[["label", "strategy"]].drop_duplicates("label")
    look_of, counts = {}, Counter[str]()
    for label, strategy in rows.itertuples(index=False):
        look, number = strategy_look(strategy), counts[strategy]
        line, fill = _LINES[number % len(_LINES)], _FILLS[number % len(_FILLS)]
        look_of[label] = Look(shade(look.colour, number), look.marker, line, fill)
        counts[strategy] += 1
    return look_of


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table sorted by strategy, and then by number of ranks.

    Rows of a dataset and workload stay together. Datasets, workloads, and rows of one strategy and
    number of ranks keep their order of appearance.
    """
    ranks = [Layout.parse(layout).ranks for layout in frame["layout"]]
    appeared = [pd.factorize(frame[key])[0] for key in ("dataset", "workload")]
    return frame.iloc[np.lexsort([ranks, _places(frame["strategy"]), *reversed(appeared)])]


def _places(strategies: pd.Series) -> pd.Series:
    """Return the position of each strategy in the registry; unknown ones come last."""
    places = {name: place for place, name in enumerate(STRATEGIES)}
    return strategies.map(places).fillna(len(places)).astype(int)


def shade(colour: Colour, number: int) -> Colour:
    """Return a colour unchanged (number 0), much darker (1), darker (2), unchanged (3), and so on.

    No shade is lighter, as the contrast with white would not last.
    """
    return tuple((1.0, 0.35, 0.6)[number % 3] * part for part in colour)


def contrast(one: Colour | str, other: Colour | str = "white") -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2). Marks need 3, and texts 4.5."""
    parts = np.array([mpl.colors.to_rgb(colour) for colour in (one, other)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    darker, lighter = sorted(linear @ (0.2126, 0.7152, 0.0722))
    return float((lighter + 0.05) / (darker + 0.05))


def heat_map(axes: Axes, values: pd.DataFrame, **settings: Any) -> None:
    """Draw a heat map without a colour bar, its texts in black or white, as can be read.

    Parameters
    ----------
    settings : of `seaborn.heatmap`.
    """
    sns.heatmap(values, ax=axes, cbar=False, **settings)
    [cells] = axes.collections
    cells.update_scalarmappable()
    colours = cells.get_facecolors().reshape(*values.shape, 4)
    for text in axes.texts:
        x, y = text.get_position()
        text.set_color(max("black", "white", key=partial(contrast, colours[int(y), int(x), :3])))


def describe_data(frame: pd.DataFrame) -> str:
    """Name the datasets in a table, with their provenance."""
    datasets = frame[["dataset", "provenance", "leaky"]].drop_duplicates()
    return ", ".join(describe(*row) for row in datasets.itertuples(index=False))


def describe(dataset: str, provenance: str, leaky: bool) -> str:
    """Name a dataset with its provenance, and say so if its split is leaky."""
    return f"{dataset} ({provenance}{', leaky split' if leaky else ''})"
