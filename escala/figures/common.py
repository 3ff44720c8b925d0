"""What the figures share: style, names of configurations, titles, notes on gaps, and saving."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from escala.explain.tables import fitted_workloads, labelled, untested
from escala.files import atomic

Tables = Mapping[str, pd.DataFrame]

MARKERS = "osD^vPX*<>"
#: Letters per inch of width, at the sizes of the style, rounded down.
TITLE_LETTERS, NOTE_LETTERS = 9.0, 12.5
DPI = 150


@contextmanager
def style() -> Iterator[None]:
    """Draw and save in the project's style; text stays text in SVG, and files are reproducible."""
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "escala",
        # Reasons of failures are the words of other programs: a dollar sign is no formula.
        "text.parse_math": False,
        "axes.titlesize": 10,
        "figure.titlesize": 12,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "legend.title_fontsize": 9,
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
    """Return an empty figure, in inches, that makes room for whatever is put into it."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, *paths: Path) -> None:
    """Write a figure in the formats of the paths' suffixes; the same figure gives equal bytes."""
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        with atomic(path) as temporary:
            figure.savefig(
                temporary, dpi=DPI, metadata=metadata, bbox_inches="tight", pad_inches=0.1
            )


def palette(names: Sequence[str]) -> dict[str, tuple]:
    """Return a colour per name that colour-blind readers can tell apart (the first ten can)."""
    colours = sns.color_palette("colorblind" if len(names) <= 10 else "husl", len(names))
    return dict(zip(names, colours, strict=True))


def markers(names: Sequence[str]) -> dict[str, str]:
    """Return a marker per name, so that colour is not the only difference."""
    return {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(names)}


def panels(frame: pd.DataFrame) -> list[tuple[tuple[str, str], pd.DataFrame]]:
    """Split a table by dataset and workload, in order of appearance."""
    return list(frame.groupby(["dataset", "workload"], sort=False))


def described(frame: pd.DataFrame) -> str:
    """Name the datasets in a table, and say what about them a reader must know."""
    datasets = frame[["dataset", "provenance", "leaky"]].drop_duplicates()
    return ", ".join(
        describe(row.dataset, row.provenance, row.leaky) for row in datasets.itertuples()
    )


def describe(dataset: str, provenance: str, leaky: bool) -> str:
    """Name a dataset with its provenance, and as leaky if its split is."""
    return f"{dataset} ({provenance}{', leaky split' if leaky else ''})"


def panel_title(workload: str, frame: pd.DataFrame, several: bool) -> str:
    return f"{described(frame)}, {workload}" if several else ""


def title(figure: Figure, what: str, frame: pd.DataFrame) -> None:
    """Head a figure: what it shows, and of which data."""
    width = int(figure.get_figwidth() * TITLE_LETTERS)
    lines = [*_wrapped(what, width), *_wrapped(described(frame), width)]
    figure.suptitle("\n".join(lines))


def legend_of(figure: Figure, axes: Iterable[Axes], heading: str) -> None:
    """Put one legend beside a figure, with each name in its axes once."""
    handles: dict[str, Artist] = {}
    for part in axes:
        for handle, label in zip(*part.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside right center", title=heading)


def note(figure: Figure, lines: Iterable[str]) -> None:
    """Put small print below a figure."""
    width = int(figure.get_figwidth() * NOTE_LETTERS)
    text = "\n".join(part for line in lines for part in _wrapped(line, width))
    if text:
        figure.supxlabel(text, x=0.01, ha="left", fontsize=8)


def gaps(runs: pd.DataFrame) -> list[str]:
    """Say which runs have no result: a line to put below a figure, or none."""
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
    return [f"Without result: {'; '.join(parts)}. Reasons are in runs.csv."]


def left_out(tables: Tables) -> list[str]:
    """Say which workloads a figure of epochs leaves out: a line to put below it, or none."""
    names = fitted_workloads(tables)
    return [f"Not shown, as they are fitted at once: {', '.join(names)}."] if names else []


def not_scored(tables: Tables) -> list[str]:
    """Say which classes have no test rows: a line to put below a figure of scores, or none."""
    names = untested(tables["pooled"])
    return [f"No test rows, hence no scores: {', '.join(names)}."] if names else []


def without_data(what: str, tables: Tables) -> Figure:
    """Return a figure that says why there is nothing to show."""
    runs = tables["runs"]
    why = "; ".join(
        f"{label}: {status}" + ("" if pd.isna(reason) else f" ({reason})")
        for label, status, reason in labelled(runs, runs)[["label", "status", "reason"]]
        .drop_duplicates()
        .itertuples(index=False)
    )
    return empty(what, described(runs), f"No run ended ok. {why}")


def nothing_by_epochs(what: str, tables: Tables) -> Figure:
    """Return a figure that says that nothing was trained over epochs."""
    return empty(what, described(tables["runs"]), " ".join(left_out(tables)))


def empty(what: str, data: str, why: str) -> Figure:
    """Return a figure with a title and, in place of axes, the reason there are none."""
    figure = new(8, 2.4)
    figure.suptitle("\n".join([*_wrapped(what, 70), *_wrapped(data, 70)]))
    why = "\n".join(_wrapped(textwrap.shorten(why, 600, placeholder=" …"), 90))
    figure.text(0.5, 0.4, why, ha="center", va="center")
    return figure


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def grid(figure: Figure, count: int, columns: int) -> list[Axes]:
    """Return `count` axes in rows of at most `columns`, of equal size."""
    columns = min(columns, count)
    rows = -(-count // columns)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for spare in axes[count:]:
        spare.remove()
    return list(axes[:count])


def significant(value: float, digits: int = 3) -> str:
    """Write a positive number with so many significant digits, never as a power of ten."""
    text = np.format_float_positional(
        value, precision=digits, unique=False, fractional=False, trim="k"
    )
    return text.rstrip(".")
