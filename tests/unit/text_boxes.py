"""Where the texts of a figure lie: which overlap, and which are cut off."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.text import Text

#: Neighbours may touch: a text's box holds the room of letters that it need not have.
TOLERANCE_PIXELS = 1.5


@dataclass(frozen=True)
class Box:
    """The rectangle, maybe turned, that a text covers: `corners` (4, 2) in pixels, in order."""

    text: str
    corners: np.ndarray
    clipped: bool


def drawn_texts(figure: Figure) -> list[Box]:
    """Draw a figure and return the box of every text that is drawn, empty ones left out."""
    found: list[Box] = []
    draw = Text.draw

    def recording(self: Text, renderer, *arguments, **keywords):
        # Places are those of this moment: some are set while a figure is drawn.
        if self.get_visible() and self.get_text().strip():
            found.append(_box(self, renderer))
        return draw(self, renderer, *arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", recording)
        FigureCanvasAgg(figure).draw()
    return found


def overlaps(found: list[Box]) -> list[tuple[str, str]]:
    """Return the pairs of texts whose boxes share more than `TOLERANCE_PIXELS`."""
    shapes = []
    for box in found:
        sides = [np.roll(box.corners, by, axis=0) - box.corners for by in (1, -1)]
        units = [
            each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1) for each in sides
        ]
        smaller = box.corners + TOLERANCE_PIXELS / 2 * sum(units)
        shape = Path([*smaller, smaller[0]], closed=True)
        shapes.append((box.text, shape, shape.get_extents()))
    return [
        (one, other)
        for (one, shape, extent), (other, around, room) in combinations(shapes, 2)
        if extent.overlaps(room) and shape.intersects_path(around)
    ]


def cut_off(figure: Figure, found: list[Box]) -> list[str]:
    """Return the texts that reach beyond the figure or are clipped by their axes."""
    low, high = figure.bbox.min - TOLERANCE_PIXELS, figure.bbox.max + TOLERANCE_PIXELS
    return [
        box.text
        for box in found
        if box.clipped or (box.corners < low).any() or (box.corners > high).any()
    ]


def _box(text: Text, renderer) -> Box:
    """Return a text's rectangle.

    Turned, its extent is known only as the upright rectangle around it. Both have one centre.
    """
    around, angle = text.get_window_extent(renderer), text.get_rotation()
    text.set_rotation(0)
    upright = text.get_window_extent(renderer)
    text.set_rotation(angle)
    half = np.array([upright.width, upright.height]) / 2
    unit = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    radians = np.deg2rad(angle)
    turn = np.array([[np.cos(radians), np.sin(radians)], [-np.sin(radians), np.cos(radians)]])
    centre = np.array([around.x0 + around.x1, around.y0 + around.y1]) / 2
    corners = unit * half @ turn + centre
    clip = text.get_clip_box() if text.get_clip_on() else None
    clipped = clip is not None and not (
        clip.x0 - 1 <= around.x0 and around.x1 <= clip.x1 + 1
        and clip.y0 - 1 <= around.y0 and around.y1 <= clip.y1 + 1
    )  # fmt: skip
    return Box(text.get_text(), corners, clipped)
