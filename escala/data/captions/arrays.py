"""Make the arrays of a split from features and captions; read pictures or scenes to predict."""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.core.text import read_text
from escala.data.base import Query, invalid, specs
from escala.data.captions import CAPTIONS_FILE, FEATURES, FEATURES_FILE, NAMES
from escala.data.captions.source import parse_scene, project, scene_name
from escala.data.captions.words import (
    DTYPE,
    START,
    UNKNOWN,
    bleu,
    counts,
    number_words,
    vocabulary,
    words_of,
)
from escala.data.images.pictures import files_of
from escala.data.splits import Side, write_split, write_tsv

KIND = "captions"
PICTURES = "pictures.tsv"
#: By picture and by caption, the words.
Captions = list[list[list[str]]]
#: The environment variable that names the weights of VGG16.
WEIGHTS = "ESCALA_VGG16"

#: The column of a picture in the predictions, and the features of the picture.
Features = Iterator[tuple[dict[str, str], np.ndarray]]


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Turn captions into numbers, and write the arrays of the sides.

    The source divides the pictures, so all seeds give the same sides. `output` receives
    `{side}_features.npy`, float16 (rows, features); `{side}_words.npy` and `{side}_labels.npy`,
    uint16 (rows, captions, positions), the two results of
    `escala.data.captions.words.number_words`; and `pictures.tsv` with the `name` of each `row` of
    each `side`.

    The description has the `vocabulary`, the words of the training captions after the cut to
    `words` positions. It also has `captions`: for each side, the number of captions, of captions
    `cut` because of their length, of `empty` captions, of `words`, and of `unknown` words. A
    simulation adds `baselines` and `trained_scenes`. The baseline `grammar` is the BLEU of the
    first caption of each test picture against the other captions of the picture, all cut to length.
    `trained_scenes` is the fraction of the test pictures whose scene is also the scene of a
    training picture. Flickr8k adds `weights_sha256`, the digest of the weights of VGG16.
    """
    described = read_json(inputs["source"] / CAPTIONS_FILE)
    length = preparation["words"]
    uncut: dict[str, Captions] = {
        side: [[words_of(caption) for caption in picture["captions"]] for picture in pictures]
        for side, pictures in described.items()
    }
    captions: dict[str, Captions] = {
        side: [[words[: length - 1] for words in texts] for texts in pictures]
        for side, pictures in uncut.items()
    }
    words = vocabulary(chain.from_iterable(captions["train"]), preparation["vocabulary"])
    most = np.iinfo(DTYPE).max + 1
    if len(words) > most:
        reason = f"the training captions have {len(words)} different words, and {most} can be "
        remedy = "set vocabulary to a number of words"
        raise InputError(f"datasets.{name}.vocabulary", None, f"{reason}numbered", remedy)
    sides = {
        side: _side(_features(inputs, side, described[side]), pictures, words, length)
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
    caption_counts = {}
    for side, (_, targets) in sides.items():
        lengths = np.array([len(caption) for texts in uncut[side] for caption in texts])
        caption_counts[side] = {
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
        below={"words": len(words)},
        vocabulary=words,
        captions=caption_counts,
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


def _side(features: np.ndarray, captions: Captions, words: Sequence[str], length: int) -> Side:
    """Return the rows of a side; a word's number is its place in `words`."""
    numbers = {word: number for number, word in enumerate(words)}
    numbered = [number_words(texts, numbers, length) for texts in captions]
    read, following = (np.stack(arrays) for arrays in zip(*numbered, strict=True))
    return Side({"features": features, "words": read}, following)


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield a query for each picture; its caption is only the start token.

    For a model that was trained on Flickr8k, the path is a PNG or JPEG file or a folder of them,
    and a query's column `file` holds the file's name. `ESCALA_VGG16` names the file of VGG16's
    weights; its digest must be the one in the training data. For a model that was trained on
    simulated scenes, the path is a text file with one scene on each line, such as `red dog runs in
    park`, and the column is `scene`.
    """
    features, words = specs(description)
    # The description may come from an unknown source.
    source, known = description.get("provenance"), description.get("vocabulary")
    if source not in (*READERS,):
        raise invalid("data.provenance", f"none of {', '.join(READERS)}")
    if source == "flickr8k" and not isinstance(description.get("weights_sha256"), str):
        raise invalid("data.weights_sha256", "no text")
    are_words = isinstance(known, list) and all(isinstance(word, str) for word in known)
    if not are_words or len(known) != words.below:
        raise invalid("data.vocabulary", f"no list of {words.below} words")
    captions = np.zeros((1, *words.shape), words.dtype)
    captions[..., 0] = START
    for columns, row in READERS[source](path, description):
        yield Query(columns, (row[None].astype(features.dtype), captions))


def _read_pictures(path: Path, description: Mapping[str, Any]) -> Features:
    """Yield the column and the features of each picture."""
    # Imported here, because `prepare` does not need VGG16.
    from escala.data.captions import vgg16

    paths = list(files_of(path)) if path.is_dir() else [path]
    vgg16.require_pictures(paths)
    named = os.environ.get(WEIGHTS)
    if not named:
        reason = "names no file of weights of VGG16"
        raise InputError(WEIGHTS, None, reason, f"export {WEIGHTS}=/path/FILE.h5")
    remedy = f"let {WEIGHTS} name the weights that the training features were computed with"
    network = vgg16.network(Path(named).expanduser(), description["weights_sha256"], remedy)
    rows = (row for block in vgg16.features(paths, network) for row in block)
    for file, row in zip(paths, rows, strict=True):
        yield {"file": file.name}, row


def _read_scenes(path: Path, description: Mapping[str, Any]) -> Features:
    """Yield the column and the features, without noise, of each scene."""
    features, _ = specs(description)
    lines = enumerate(read_text(path).splitlines(), start=1)
    named = [(number, line) for number, line in lines if line.strip()]
    if not named:
        raise InputError(path, path.name, "names no scene", "write one scene on each line")
    for number, line in named:
        scene = parse_scene(line, f"{path}, line {number}")
        [row] = project(scene[None], *features.shape)
        yield {"scene": scene_name(scene)}, row


#: The reader of a user's data, by the source of the training data.
READERS = {"simulated": _read_scenes, "flickr8k": _read_pictures}
