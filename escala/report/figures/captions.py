"""Draw test pictures with the captions that a run wrote, and with the reference captions."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from escala.core.errors import InputError
from escala.data.base import Arrays
from escala.data.captions.arrays import PICTURES
from escala.data.captions.words import bleu, counts, references, word_numbers
from escala.data.images.pictures import read_picture
from escala.report.figures import RunFiles, common
from escala.report.figures.common import LABEL, LEGEND, NOTE, describe, height_of, wrap

CATEGORY = "Examples"
CAPTION = (
    "Test pictures or scenes with the caption that a run wrote for them, its BLEU, and, after "
    "dashes, the reference captions. The pictures are at equal distances in the order of the test "
    "side: none was chosen by its captions. BLEU of one caption varies much more than that of all "
    "captions together, and BLEU-N is 0 if no sequence of N words agrees."
)
KIND = "captions"
FILE = "predictions.npy"
WHAT = "Captions of test pictures"
#: The scores of a caption, and a name for all of them.
BLEU, NAMES = ("bleu_1", "bleu_2", "bleu_3", "bleu_4"), "BLEU-1 to BLEU-4"
#: The most pictures of a figure.
MOST = 8
# In inches: the width of the figure, the width of a photograph, the space beside a photograph, and
# the space below a picture. The figure is narrow so that it stays readable on a narrow page.
WIDTH, PICTURE, PICTURE_MARGIN, MARGIN = 5.0, 1.3, 0.12, 0.14
WRITTEN, GREY = common.MUTED[1], "0.35"


class Example(NamedTuple):
    """A test picture with its captions.

    `name` is the name of the picture's file or scene. `written` is the caption that a run wrote; it
    is empty if the run wrote no word. `references` are the reference captions in their order.
    `bleu` has the scores `bleu_1` to `bleu_4`.
    """

    name: str
    written: str
    references: list[str]
    bleu: dict[str, float]


def draw(run: dict, files: RunFiles) -> Figure:
    """Draw some test pictures, each with its captions and its BLEU.

    Parameters
    ----------
    run : the content of its run.json.
    files : the caption of each test picture, the split, and the folder of the photographs; without
        that folder the pictures are simulated scenes.
    """
    name = " ".join(run[key] for key in ("strategy", "layout", "variant", "network", "workload"))
    data = describe(run["dataset"], run["data"]["provenance"], run["data"]["leaky"])
    ended = f"The run ended as {run['status']}: {run['reason']}."
    predictions = None if files.file is None else np.load(files.file, allow_pickle=False)
    if predictions is None or not are_captions(files.split, predictions):
        why = "predictions are not numbers of words" if files.file else "run left no captions"
        text = f"Unavailable: the {why}. {ended if run['reason'] else ''}"
        return common.empty(f"{WHAT}, {name}", data, text)
    pictures, selected = files.pictures, examples(files.split, predictions, MOST)
    photographs: list[Image.Image | None] = [None] * len(selected)
    for place, example in enumerate(selected if pictures else ()):
        with suppress(InputError):
            picture = Image.fromarray(read_picture(pictures / example.name, "rgb", None))
            picture.thumbnail((round(PICTURE * common.DPI),) * 2)
            photographs[place] = picture
    left = 0.0 if pictures is None else PICTURE + PICTURE_MARGIN
    kind = "Scene" if pictures is None else "Picture"
    figure, top = common.new(WIDTH, 1), 0.0
    axes = figure.subplots()
    # One unit of the axes is an inch.
    for example, photograph in zip(selected, photographs, strict=True):
        bottom = top
        if photograph is not None:
            width, height = PICTURE * np.divide(photograph.size, max(photograph.size))
            axes.imshow(photograph, extent=(0, width, top + height, top))
            bottom += PICTURE
        for text, points, colour, weight in _lines(example, kind, WIDTH - 0.2 - left):
            axes.text(left, top, text, fontsize=points, color=colour, weight=weight, va="top")
            top += height_of([text], points)
        top = max(top, bottom) + MARGIN
    figure.set_figheight(top)
    axes.set(xlim=(0, WIDTH - 0.1), ylim=(top, 0), aspect="equal")
    axes.axis("off")
    notes = [f"{len(selected)} of {len(predictions)} test pictures."]
    scores = (run["evaluation"] or {}).get("scores", {})
    if all_scores := ", ".join(f"{scores[bleu]:.2f}" for bleu in BLEU if bleu in scores):
        notes.append(f"{NAMES} of the captions of all test pictures: {all_scores}.")
    if pictures is not None and (missing := sum(photograph is None for photograph in photographs)):
        notes.append(f"Photographs that are missing or damaged: {missing}.")
    common.finish(figure, [WHAT, name, data], [*notes, *[ended] * (run["status"] != "ok")])
    return figure


def are_captions(split: Path, predictions: np.ndarray) -> bool:
    """Return whether predictions are captions of the test pictures, as numbers of words."""
    arrays = Arrays(split)
    words = len(arrays.description["vocabulary"])
    return (
        predictions.ndim == 2
        and predictions.dtype.kind in "iu"
        and len(predictions) == arrays.rows("test")
        and bool(((predictions >= 0) & (predictions < words)).all())
    )


def examples(split: Path, predictions: np.ndarray, most: int) -> list[Example]:
    """Return at most `most` test pictures, equally spaced from the first to the last.

    The captions do not influence which pictures are selected. `predictions`, shape (rows, length),
    have a caption for each test picture; `are_captions` holds for them.
    """
    arrays = Arrays(split)
    rows, vocabulary = arrays.rows("test"), arrays.description["vocabulary"]
    with open(split / PICTURES, newline="", encoding="utf-8") as handle:
        table = csv.DictReader(handle, delimiter="\t")
        names = [row["name"] for row in table if row["side"] == "test"]
    targets = arrays.gather("test", slice(None))[1]
    written_examples = []
    for row in np.linspace(0, rows - 1, min(most, rows)).round().astype(int):
        caption, compared = word_numbers(predictions[row]), references(targets[row])
        written, *texts = (
            " ".join(vocabulary[number] for number in words) for words in (caption, *compared)
        )
        score = bleu(counts(compared, caption))
        written_examples.append(Example(names[row], written, list(filter(None, texts)), score))
    return written_examples


def _lines(example: Example, kind: str, inches: float) -> Iterator[tuple[str, float, str, str]]:
    """Yield the lines beside a picture or a scene, with their points, colour and weight.

    A line is at most `inches` wide.
    """
    scores = ", ".join(f"{value:.2f}" for value in map(example.bleu.get, BLEU))
    for text, *look in (
        (f"{kind}: {example.name}", LABEL, "black", "bold"),
        (f"Run: {example.written or '(no word)'}", LABEL, WRITTEN, "normal"),
        (f"{NAMES}: {scores}", NOTE, WRITTEN, "normal"),
        *((f"– {reference}", LEGEND, GREY, "normal") for reference in example.references),
    ):
        # `wrap` assumes letters of normal width. Bold letters are wider.
        width = (0.85 if look[-1] == "bold" else 0.97) * inches
        for part in wrap(text, width, look[0]).split("\n"):
            yield part, *look
