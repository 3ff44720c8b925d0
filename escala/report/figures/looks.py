"""Provide the look, the order and the words of configurations and data, without Matplotlib."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd

from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES

Colour = tuple[float, float, float]

#: The palette *colorblind* of seaborn, which findings would import only for these colours.
_COLOURBLIND = (
    "#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#949494",
    "#ece133", "#56b4e9",
)  # fmt: skip
MARKERS = "osD^vPX*<>phHd8"
_LINES, _FILLS = ("-", "--", "-.", ":"), ("full", "none")


@dataclass(frozen=True)
class Look:
    """The colour, marker, line and filling of one series."""

    colour: Colour
    marker: str
    line: str
    fill: str


def strategy_look(strategy: str) -> Look:
    """Return the look that a strategy has in every figure.

    It depends on the strategy's position in the registry, so a strategy added at the end gets the
    next colour. A strategy of programs only has the look of one that starts none: no experiment
    compares the two. A strategy that is not in the registry, from an old measurement, is black.
    """
    if strategy not in STRATEGIES:
        return Look((0.0, 0.0, 0.0), "x", "-", "full")
    place = _look_places()[strategy]
    rounds, number = divmod(place, len(_COLOURBLIND))
    code = _COLOURBLIND[number].removeprefix("#")
    colour = tuple(part / 255 for part in bytes.fromhex(code))
    # After the palette come its darker colours.
    colour = shade(colour, 2) if rounds else colour
    return Look(colour, MARKERS[place % len(MARKERS)], "-", "full")


def _look_places() -> dict[str, int]:
    """Return the place of each strategy's look among the colours and markers."""
    names = [name for name, strategy in STRATEGIES.items() if strategy.engine]
    free = [n for n, name in enumerate(names) if not STRATEGIES[name].programs]
    others = [name for name in STRATEGIES if name not in names]
    further = range(len(names), len(names) + len(others))
    return dict(zip([*names, *others], [*range(len(names)), *free, *further], strict=False))


def looks(frame: pd.DataFrame) -> dict[str, Look]:
    """Return the look of every label of a table, in the order of the strategies.

    Several labels of one strategy have its marker, and differ in shade, line and filling.

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
    """Return a table with the rows of each dataset and workload in the order of the strategies.

    Rows of one strategy are in the order of their number of ranks. Datasets, workloads, and rows
    that are equal in both, keep their order of appearance.
    """
    ranks = [Layout.parse(layout).ranks for layout in frame["layout"]]
    appeared = [pd.factorize(frame[key])[0] for key in ("dataset", "workload")]
    return frame.iloc[np.lexsort([ranks, _places(frame["strategy"]), *reversed(appeared)])]


def _places(strategies: pd.Series) -> pd.Series:
    """Return the position of each strategy in the registry; unknown ones come last."""
    places = {name: place for place, name in enumerate(STRATEGIES)}
    return strategies.map(places).fillna(len(places)).astype(int)


def shade(colour: Colour, number: int) -> Colour:
    """Return a colour itself (number 0), lighter (1), darker (2), and so on in turn."""
    towards, fraction = ((0.0, 0.0), (1.0, 0.45), (0.0, 0.4))[number % 3]
    return tuple((1 - fraction) * part + fraction * towards for part in colour)


def describe_data(frame: pd.DataFrame) -> str:
    """Name the datasets in a table, with their provenance."""
    datasets = frame[["dataset", "provenance", "leaky"]].drop_duplicates()
    return ", ".join(describe(*row) for row in datasets.itertuples(index=False))


def describe(dataset: str, provenance: str, leaky: bool) -> str:
    """Name a dataset with its provenance, and as leaky if its split is."""
    return f"{dataset} ({provenance}{', leaky split' if leaky else ''})"


def significant(value: float, digits: int = 3) -> str:
    """Write a positive number with some significant digits, never as a power of ten."""
    text = np.format_float_positional(
        value, precision=digits, unique=False, fractional=False, trim="k"
    )
    return text.rstrip(".")
