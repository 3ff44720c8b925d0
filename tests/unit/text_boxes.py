"""Where the texts of a figure lie: which overlap, and which are cut off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

#: Neighbours may touch: a text's box holds the room of letters that it need not have.
TOLERANCE_PIXELS = 1.5


@dataclass(frozen=True)
class Box:
    """The rectangle, maybe turned, that a text covers.

    corners : (4, 2), pixels, in the order in which they surround it.
    """

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
    corners = np.array([box.corners for box in found]).reshape(-1, 4, 2)
    low, high = corners.min(axis=1), corners.max(axis=1)
    near = (low[:, None] < high[None]).all(axis=2) & (low[None] < high[:, None]).all(axis=2)
    return [
        (found[i].text, found[j].text)
        for i, j in np.argwhere(np.triu(near, 1))
        if _shared(corners[i], corners[j]) > TOLERANCE_PIXELS
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


def _shared(one: np.ndarray, other: np.ndarray) -> float:
    """Return how far two rectangles must move to be apart, in pixels; below 0 they are.

    Separating axis theorem: convex shapes are apart if their shadows are, on a normal of a side.
    """
    depths = []
    for rectangle in (one, other):
        for side in (rectangle[1] - rectangle[0], rectangle[2] - rectangle[1]):
            length = np.hypot(*side)
            if length == 0:
                return 0.0
            normal = np.array([-side[1], side[0]]) / length
            a, b = one @ normal, other @ normal
            depths.append(min(a.max() - b.min(), b.max() - a.min()))
    return min(depths)
