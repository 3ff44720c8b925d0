"""Make pictures of one size from a source: `SIDE_images.npy`, `SIDE_labels.npy`, `images.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.files import write_json
from escala.data.base import require_class_names
from escala.data.images import cifar, idx
from escala.data.images.outlines import outlines
from escala.data.images.pictures import brought_to, classes_of, files_of, read_picture, sides_of
from escala.data.images.settings import OUTLINE_SIZE, OUTLINES
from escala.data.writer import ArrayWriter, written

Pictures = Iterator[tuple[str, np.ndarray, np.ndarray]]


def acquire(acquisition: Mapping[str, Any], inputs: Sequence[Path], folder: Path) -> None:
    """Read the pictures of the user's folder, archive or files into `folder`, some at a time.

    It receives for each side `SIDE_images.npy`, uint8 (pictures, height, width, colours), and
    `SIDE_labels.npy`, int64 (pictures,); and `images.json` with the names of the `classes` and the
    `sides`. Pictures that the source does not divide are the side `train`.
    """
    size = tuple(acquisition["size"]) if acquisition["size"] else None
    classes, parts = _read(acquisition, inputs, size)
    require_class_names(classes or [], next(iter(inputs), None), "rename it")
    if twice := [name for name in classes or [] if classes.count(name) > 1]:
        raise InputError(inputs[0], twice[0], "is the name of two classes", "rename one")
    labels: dict[str, list[np.ndarray]] = {}
    with ExitStack() as files:
        writers: dict[str, ArrayWriter] = {}
        shape = None
        for side, pictures, found in parts:
            pictures = brought_to(pictures, acquisition["colour"], size)
            shape = shape or pictures.shape[1:]
            _require_shape(inputs[0] if inputs else folder, pictures.shape[1:], shape)
            if side not in writers:
                path = folder / f"{side}_images.npy"
                writers[side] = files.enter_context(written(path, shape, np.uint8))
            writers[side].append(pictures)
            labels.setdefault(side, []).append(found)
    numbers = {side: np.concatenate(blocks) for side, blocks in labels.items()}
    for side, group in numbers.items():
        if not len(group):
            raise InputError(inputs[0], f"side {side}", "holds no picture", "give some")
    named = classes or _numbered(inputs[-1], np.concatenate(list(numbers.values())))
    if len(named) < 2:
        raise InputError(inputs[-1], named, "is one class only", "give pictures of two or more")
    for side, group in numbers.items():
        np.save(folder / f"{side}_labels.npy", group.astype(np.int64), allow_pickle=False)
    write_json(folder / "images.json", {"classes": named, "sides": list(numbers)})


def _numbered(path: Path, numbers: np.ndarray) -> list[str]:
    """Return the names of classes that only have numbers: 0 to the largest.

    Where most of the classes have no picture, as if one label in the file `path` is wrong, it is
    refused.
    """
    present, largest = len(np.unique(numbers)), int(numbers.max())
    if 2 * present < largest + 1:
        reason = f"would make {largest + 1} classes, of which {present} have pictures"
        remedy = "correct the labels: they are the numbers of the classes, from 0"
        raise InputError(path, f"label {largest}", reason, remedy)
    return [str(number) for number in range(largest + 1)]


def _read(
    acquisition: Mapping[str, Any], inputs: Sequence[Path], size: tuple[int, int] | None
) -> tuple[list[str] | None, Pictures]:
    """Return the names of the classes, None if they are numbers, and the pictures."""
    kind = acquisition["type"]
    if kind in ("idx", "cifar"):
        accept = acquisition["cut_short"] == "accept"
        if kind == "idx":
            return None, idx.sides(inputs[0], accept)
        return cifar.sides(inputs[0], accept)
    if kind == "outlines":
        options = (acquisition[key] for key in ("difficulty", "seed"))
        parts = outlines(acquisition["per_class"], size or OUTLINE_SIZE, *options)
        names = [f"outline{number}" for number in range(1, OUTLINES + 1)]
        return names, (("train", pictures, labels) for pictures, labels in parts)
    return _folders(inputs[0], acquisition["colour"], size)


def _folders(folder: Path, colour: str, size: tuple[int, int] | None) -> tuple[list[str], Pictures]:
    sides = sides_of(folder)
    classes = classes_of(sides["train"])
    for inner in sides.values():
        others = sorted(set(classes_of(inner)) - set(classes))
        if others:
            reason, remedy = "is not a class of the training side", "add it there, or remove it"
            raise InputError(inner, others, reason, remedy)

    def read() -> Pictures:
        shape = None
        for side, inner in sides.items():
            present = (name for name in classes if (inner / name).is_dir())
            for name in present:
                paths = list(files_of(inner / name))
                for path in tqdm(paths, desc=f"{side} {name}", disable=None):
                    picture = read_picture(path, colour, size)
                    shape = shape or picture.shape
                    _require_shape(path, picture.shape, shape)
                    yield side, picture[None], np.array([classes.index(name)])

    return classes, read()


def _require_shape(path: Path, shape: tuple[int, ...], first: tuple[int, ...]) -> None:
    if shape != first:
        found, wanted = (" × ".join(map(str, each)) for each in (shape, first))
        reason = f"differs in size or colours from the first picture, {wanted}"
        remedy = "set size, and colour: grey or rgb, to bring all pictures to one form"
        raise InputError(path, found, reason, remedy)
