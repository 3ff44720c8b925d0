"""A user's pictures, or scenes, as the features that a model was trained on."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.errors import InputError
from escala.core.text import read_text
from escala.data.base import Query, invalid, specs
from escala.data.captions import vgg16
from escala.data.captions.source import parse_scene, project, scene_name
from escala.data.captions.words import START
from escala.data.images.pictures import files_of

#: The environment variable that names the weights of VGG16.
WEIGHTS = "ESCALA_VGG16"

#: The column of a picture, and its features.
Features = Iterator[tuple[dict[str, str], np.ndarray]]


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield a query for each picture, with captions that hold only the start token.

    For a model that was trained on Flickr8k, the path is a PNG or JPEG file or a folder of them,
    and a query's column `file` holds the file's name. `ESCALA_VGG16` names the weights of VGG16,
    whose digest must be that of the training data. For one that was trained on simulated scenes,
    the path is a text file with a scene a line, such as `red dog runs in park`, and the column is
    `scene`.
    """
    features, words = specs(description)
    # The description may be of anyone.
    source, known = description.get("provenance"), description.get("vocabulary")
    if source not in (*READERS,):
        raise invalid("data.provenance", f"none of {', '.join(READERS)}")
    if source == "flickr8k" and not isinstance(description.get("weights_sha256"), str):
        raise invalid("data.weights_sha256", "no text")
    texts = isinstance(known, list) and all(isinstance(word, str) for word in known)
    if not texts or len(known) != words.below:
        raise invalid("data.vocabulary", f"no list of {words.below} words")
    begun = np.zeros((1, *words.shape), words.dtype)
    begun[..., 0] = START
    for columns, row in READERS[source](path, description):
        yield Query(columns, (row[None].astype(features.dtype), begun))


def _pictures(path: Path, description: Mapping[str, Any]) -> Features:
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


def _scenes(path: Path, description: Mapping[str, Any]) -> Features:
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


#: How the data of a user are read, by the source of the training data.
READERS = {"simulated": _scenes, "flickr8k": _pictures}
