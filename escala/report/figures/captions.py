"""Draw test pictures with the captions that a run wrote, and what these are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from escala.core.errors import InputError
from escala.data.captions.examples import Example, are_captions, examples
from escala.data.images.pictures import read_picture
from escala.report.figures import OfRun
from escala.report.figures.common import (
    DPI,
    LABEL,
    LEGEND,
    MUTED,
    NOTE,
    name_height,
    new,
    note,
    wrap,
)
from escala.report.figures.one_run import heading, nothing

CATEGORY = "Examples"
KIND = "captions"
BESIDE = "predictions.npy"
MEASUREMENT = "repeat"
WHAT = "Captions of test pictures"
#: The scores of a caption, and what they are called together.
BLEU, NAMES = ("bleu_1", "bleu_2", "bleu_3", "bleu_4"), "BLEU-1 to BLEU-4"
#: Pictures that are shown.
MOST = 8
# In inches: the figure, a photograph with the space beside it, and the space below a picture. A
# narrow figure is readable where it is scaled to a narrow page.
WIDTH, PICTURE, PICTURE_MARGIN, MARGIN = 5.0, 1.3, 0.12, 0.14
WRITTEN, GREY = MUTED[1], "0.35"


class Line(NamedTuple):
    """A line of text beside or below a picture."""

    text: str
    points: float
    colour: str
    weight: str = "normal"

    @property
    def height(self) -> float:
        """Return the height in inches."""
        return name_height([self.text], self.points)


def draw(run: dict, shown: OfRun) -> Figure:
    """Draw some test pictures, each with its captions and its BLEU.

    Parameters
    ----------
    run : the content of its run.json.
    shown : the caption of each test picture, the split, and the folder of the photographs; without
        that folder the pictures are simulated scenes.
    """
    if shown.file is None:
        return nothing(WHAT, run, "the run left no captions")
    predictions, pictures = np.load(shown.file, allow_pickle=False), shown.pictures
    if not are_captions(shown.split, predictions):
        return nothing(WHAT, run, "the predictions are not numbers of words")
    chosen = examples(shown.split, predictions, MOST)
    photographs = [_photograph(pictures, each.name) for each in chosen]
    left = 0.0 if pictures is None else PICTURE + PICTURE_MARGIN
    called = "Scene" if pictures is None else "Picture"
    texts = [_lines(each, called, WIDTH - 0.2 - left) for each in chosen]
    heights = [
        max(sum(line.height for line in lines), 0.0 if photograph is None else PICTURE) + MARGIN
        for lines, photograph in zip(texts, photographs, strict=True)
    ]
    figure = new(WIDTH, sum(heights))
    axes = figure.subplots()
    # One unit of the axes is an inch.
    for lines, photograph, top in zip(
        texts, photographs, np.cumsum([0.0, *heights[:-1]]), strict=True
    ):
        _write(axes, lines, left, top)
        if photograph is not None:
            _show(axes, photograph, top)
    axes.set(xlim=(0, WIDTH - 0.1), ylim=(sum(heights), 0), aspect="equal")
    axes.axis("off")
    heading(figure, WHAT, run)
    note(figure, _notes(run, len(predictions), len(chosen), pictures, photographs))
    return figure


def _lines(example: Example, called: str, inches: float) -> list[Line]:
    """Return the lines of a picture's texts, none wider than some inches."""
    scores = ", ".join(f"{value:.2f}" for value in map(example.bleu.get, BLEU))
    lines = [
        Line(f"{called}: {example.name}", LABEL, "black", "bold"),
        Line(f"Run: {example.written or '(no word)'}", LABEL, WRITTEN),
        Line(f"{NAMES}: {scores}", NOTE, WRITTEN),
        *(Line(f"– {reference}", LEGEND, GREY) for reference in example.references),
    ]
    # Bold letters are wider than those by which texts are broken.
    widths = {"normal": 0.97 * inches, "bold": 0.85 * inches}
    return [
        line._replace(text=part)
        for line in lines
        for part in wrap(line.text, widths[line.weight], line.points).split("\n")
    ]


def _write(axes: Axes, lines: Sequence[Line], left: float, top: float) -> None:
    for line in lines:
        text, points, colour, weight = line
        axes.text(left, top, text, fontsize=points, color=colour, weight=weight, va="top")
        top += line.height


def _photograph(pictures: Path | None, name: str) -> np.ndarray | None:
    """Return a small copy of a photograph, uint8 (height, width, 3), or None if it has none."""
    if pictures is None:
        return None
    try:
        picture = Image.fromarray(read_picture(pictures / name, "rgb", None))
    except InputError:
        return None
    picture.thumbnail((round(PICTURE * DPI),) * 2)
    return np.asarray(picture)


def _show(axes: Axes, photograph: np.ndarray, top: float) -> None:
    """Show a photograph in the square of the side `PICTURE` at the left edge."""
    height, width = (PICTURE * side / max(photograph.shape[:2]) for side in photograph.shape[:2])
    axes.imshow(photograph, extent=(0, width, top + height, top))


def _notes(
    run: dict, rows: int, shown: int, pictures: Path | None, photographs: Sequence
) -> list[str]:
    scores = (run["evaluation"] or {}).get("scores", {})
    of_all = [f"{scores[name]:.2f}" for name in BLEU if name in scores]
    missing = pictures is not None and sum(each is None for each in photographs)
    return [
        f"{shown} of {rows} test pictures, at equal distances in their order. The lines that begin "
        "with a dash are the reference captions.",
        *[f"{NAMES} of the captions of all test pictures: {', '.join(of_all)}."] * bool(of_all),
        *[f"Photographs that are missing or damaged: {missing}."] * bool(missing),
        *[f"The run ended as {run['status']}: {run['reason']}."] * (run["status"] != "ok"),
    ]
