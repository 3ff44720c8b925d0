"""Measure and break the texts of figures, in the font of their style."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

#: Sizes of texts in points, the values of `common.style`.
FIGURE_TITLE, PANEL_TITLE, LABEL, LEGEND, NOTE = 12.0, 10.0, 9.25, 9.0, 8.0
#: The largest width of names of configurations and classes in a figure, in inches.
NAME_INCHES = 2.0
_POINTS_PER_INCH, _LINE_SPACING = 72, 1.25


def wrapped_names(names: Iterable[str], points: float = LABEL) -> list[str]:
    """Break names that are wider than `NAME_INCHES` into lines."""
    return [wrap(name, NAME_INCHES, points) for name in names]


def height_of(names: Iterable[str], points: float = LABEL) -> float:
    """Return the height in inches of the tallest of some names, at least a line."""
    return inches(max((name.count("\n") + 1 for name in names), default=1), points)


def inches(lines: float, points: float) -> float:
    """Return the height of some lines."""
    return lines * points * _LINE_SPACING / _POINTS_PER_INCH


def wrap(text: str, width: float, points: float) -> str:
    """Break a text into lines of at most that width, in inches.

    Lines end at spaces, except no-break spaces. A longer word is broken after a hyphen or an
    underscore, and one without these anywhere. Line breaks of the text are kept.
    """
    return "\n".join(line for part in text.split("\n") for line in _lines(part, width, points))


def _lines(text: str, width: float, points: float) -> list[str]:
    def fits(part: str) -> bool:
        return text_width(part, points) <= width

    lines = [""]
    for word in re.findall(r"[^\S\xa0]*[\S\xa0]+", text):
        whole = fits(word.strip())
        pieces = [word] if whole else re.findall(r"[^-_]*[-_]|[^-_]+", word)
        for piece in pieces:
            for part in [piece] if fits(piece.strip()) else piece:
                if fits(line := (lines[-1] + part).lstrip(" ")):
                    lines[-1] = line
                else:
                    lines.append(part.strip())
    return [line for line in lines if line] or [""]


@cache
def text_width(text: str, points: float) -> float:
    """Return the width of a line in inches, in the style's font."""
    font = FontProperties(size=points)
    width, _, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return width / _POINTS_PER_INCH
