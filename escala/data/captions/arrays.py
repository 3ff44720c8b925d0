"""Make the arrays of a split, to train and test on, from features and captions."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data.captions.settings import CAPTIONS_FILE, FEATURES, FEATURES_FILE, NAMES
from escala.data.captions.words import (
    DTYPE,
    UNKNOWN,
    bleu,
    counts,
    number_words,
    vocabulary,
    words_of,
)
from escala.data.splits import Side, write_split, write_tsv

KIND = "captions"
PICTURES = "pictures.tsv"
#: Words of each caption of each picture.
Captions = list[list[list[str]]]


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Turn captions into numbers, and write the arrays of the sides.

    The source divides the pictures, so all seeds give the same sides. `output` receives
    `{side}_features.npy`, float16 (rows, features); `{side}_words.npy` and `{side}_labels.npy`,
    uint16 (rows, captions, positions), as `escala.data.captions.words.number_words` gives them; and
    `pictures.tsv` with the `name` of each `row` of each `side`.

    The description has the `vocabulary`, the words of the training captions that were not cut off;
    and `captions`, for each side the number of captions, how many of them were `cut` because of
    their length, how many are `empty`, their `words`, and how many of these are `unknown`. For a
    simulation there are also `baselines`, with the BLEU of the first caption of each test picture
    against its others, all of them cut, as `grammar`; and `trained_scenes`, the fraction of the
    test pictures whose scene is also one of a training picture. For Flickr8k there is
    `weights_sha256`, the digest of the network's weights.
    """
    described = read_json(inputs["source"] / CAPTIONS_FILE)
    length = preparation["words"]
    whole = {
        side: [[words_of(caption) for caption in picture["captions"]] for picture in pictures]
        for side, pictures in described.items()
    }
    captions = {
        side: [[words[: length - 1] for words in texts] for texts in pictures]
        for side, pictures in whole.items()
    }
    known = vocabulary(chain.from_iterable(captions["train"]), preparation["vocabulary"])
    most = np.iinfo(DTYPE).max + 1
    if len(known) > most:
        reason = f"the training captions have {len(known)} different words, and {most} can be "
        remedy = "set vocabulary to a number of words"
        raise InputError(f"datasets.{name}.vocabulary", None, f"{reason}numbered", remedy)
    sides = {
        side: _side(_features(inputs, side, described[side]), pictures, known, length)
        for side, pictures in captions.items()
    }
    names = {side: [picture["name"] for picture in described[side]] for side in described}
    rows = [(side, row, text) for side in names for row, text in enumerate(names[side])]
    write_tsv(output / PICTURES, [("side", "row", "name"), *rows])
    if preparation["provenance"] == "simulated":
        agreement = sum(counts(references, first) for first, *references in captions["test"])
        repeated = float(np.isin(names["test"], names["train"]).mean())
        more = {"baselines": {"grammar": bleu(agreement)}, "trained_scenes": repeated}
    else:
        more = {"weights_sha256": preparation["weights_sha256"]}
    numbers = {}
    for side, (_, targets) in sides.items():
        lengths = np.array([len(words) for texts in whole[side] for words in texts])
        numbers[side] = {
            "captions": len(lengths),
            "cut": int((lengths >= length).sum()),
            "empty": int((lengths == 0).sum()),
            "words": int(lengths.clip(max=length - 1).sum()),
            "unknown": int((targets == UNKNOWN).sum()),
        }
    return write_split(
        output,
        sides,
        kind=KIND,
        name=name,
        seed=seed,
        provenance=preparation["provenance"],
        below={"words": len(known)},
        vocabulary=known,
        captions=numbers,
        **more,
    )


def _features(
    inputs: Mapping[str, Path], side: str, pictures: Sequence[Mapping[str, Any]]
) -> np.ndarray:
    """Return the features of the pictures or scenes of a side, float16 (pictures, features)."""
    if "features" not in inputs:
        return np.load(inputs["source"] / FEATURES_FILE.format(side=side), allow_pickle=False)
    rows = {name: row for row, name in enumerate(read_json(inputs["features"] / NAMES))}
    computed = np.load(inputs["features"] / FEATURES, mmap_mode="r", allow_pickle=False)
    return computed[[rows[picture["name"]] for picture in pictures]]


def _side(features: np.ndarray, captions: Captions, known: Sequence[str], length: int) -> Side:
    numbers = {word: number for number, word in enumerate(known)}
    both = [number_words(texts, numbers, length) for texts in captions]
    words, targets = (np.stack(arrays) for arrays in zip(*both, strict=True))
    return Side({"features": features, "words": words}, targets)
