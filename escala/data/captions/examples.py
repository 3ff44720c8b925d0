"""Some test pictures with the captions that a run wrote, and what these are compared with."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from escala.data.base import Arrays
from escala.data.captions.arrays import PICTURES
from escala.data.captions.words import bleu, counts, references, word_numbers
from escala.data.paths import expand_path


class Example(NamedTuple):
    """A test picture with its captions; its `name` is that of its file, or its scene.

    `written` is the caption that a run wrote, empty if it has no word; `references` are those that
    it is compared with, in their order, and `bleu` has its `bleu_1` to `bleu_4`.
    """

    name: str
    written: str
    references: list[str]
    bleu: dict[str, float]


def pictures(settings: Mapping[str, Any]) -> Path | None:
    """Return the folder of a dataset's photographs, or None if its pictures are scenes."""
    source = settings["source"]
    if source["type"] == "simulated":
        return None
    return Path(expand_path(source["pictures"], "source.pictures"))


def are_captions(split: Path, predictions: np.ndarray) -> bool:
    """Return whether predictions are a caption for each test picture, by numbers of words."""
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

    So no picture is selected by its captions. `predictions` are the caption of each test picture,
    (rows, length), for which `are_captions` holds.
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
