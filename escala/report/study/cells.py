"""Numbers of a scaling study as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from escala.experiment.runs import layout_in_words, strategy_in_words

UNKNOWN = "unavailable"
#: Numbers below are shown as such.
_LEAST = 1e-4


def layout(row: Mapping) -> str:
    """Return the layout of a row, with its strategy if that is not the one of the series."""
    own = row["strategy"] == row["study_strategy"]
    return row["layout"] if own else f"{row['layout']} ({row['strategy']})"


def in_words(row: Mapping) -> str:
    """Describe the layout of a row, as `layout` does, in words."""
    text = layout_in_words(row["layout"], row["strategy"])
    if row["strategy"] == row["study_strategy"] or text == layout_in_words("1x1"):
        return text
    return f"{text} ({strategy_in_words(row['strategy'])})"


def interval(row: Mapping, name: str) -> str:
    return with_ends(*(row[f"{name}{end}"] for end in ("", "_low", "_high")))


def with_ends(value: float, low: float, high: float) -> str:
    """Return a value with its interval in brackets, if that is known."""
    if pd.isna(value):
        return UNKNOWN
    if pd.isna(low) or pd.isna(high):
        return number(value)
    return f"{number(value)} ({number(low)}–{number(high)})"


def number(value: Any, form: str = ".3g") -> str:
    """Return a number with three significant digits and without an exponent, or `UNKNOWN`."""
    if pd.isna(value):
        return UNKNOWN
    if form != ".3g" or value == 0:
        return format(float(value), form)
    if abs(value) < _LEAST:
        return f"< {_LEAST:f}".rstrip("0")
    digits = max(0, 2 - int(f"{abs(value):e}".rpartition("e")[2]))
    return f"{value:.{digits}f}"
