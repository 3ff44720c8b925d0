"""A source to pictures of one size: `SIDE_images.npy`, `SIDE_labels.npy`, and `images.json`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.files import write_json
from escala.data.base import LONGEST_CLASS, is_class_name
from escala.data.images import cifar, idx
from escala.data.images.outlines import outlines
from escala.data.images.pictures import (
    brought_to,
    classes_of,
    files_of,
    folders_of,
    read_picture,
)
from escala.data.images.settings import OUTLINE_SIZE, OUTLINES
from escala.data.writer import ArrayWriter, written

#: Names of a folder of each side, in any case; `seg_train` and `training_set` are such, too.
FOLDERS = {
    side: re.compile(rf"(?:seg[_-])?(?:{names})(?:[ _-]?(?:set|data|images))?", re.IGNORECASE)
    for side, names in (
        ("train", "train(?:ing)?"),
        ("validation", "val(?:id(?:ation)?)?|dev"),
        ("test", "test(?:ing)?"),
    )
}

Pictures = Iterator[tuple[str, np.ndarray, np.ndarray]]


def acquire(acquisition: Mapping[str, Any], inputs: Sequence[Path], folder: Path) -> None:
    """Read pictures into `folder`, some at a time.

    Parameters
    ----------
    acquisition : the settings of the source, without its paths, with `colour` and `size`.
    inputs : the user's folder, archive or files.
    folder : receives for each side `SIDE_images.npy`, uint8 (pictures, height, width, colours), and
        `SIDE_labels.npy`, int64 (pictures,); and `images.json` with the names of the `classes` and
        the `sides`. Pictures that the source does not divide are the side `train`.

    Raises
    ------
    InputError : a file is missing, damaged, or no picture of that size.
    """
    size = tuple(acquisition["size"]) if acquisition["size"] else None
    classes, parts = _read(acquisition, inputs, size)
    _require_names(inputs, classes or [])
    labels: dict[str, list[np.ndarray]] = {}
    with ExitStack() as files:
        writers: dict[str, ArrayWriter] = {}
        shape = None
        for side, pictures, of_pictures in parts:
            pictures = brought_to(pictures, acquisition["colour"], size)
            shape = shape or pictures.shape[1:]
            if pictures.shape[1:] != shape:
                raise _unlike(inputs[0], shape, pictures.shape[1:])
            if side not in writers:
                path = folder / f"{side}_images.npy"
                writers[side] = files.enter_context(written(path, shape, np.uint8))
            writers[side].append(pictures)
            labels.setdefault(side, []).append(of_pictures)
    numbers = {side: np.concatenate(blocks) for side, blocks in labels.items()}
    for side, of_side in numbers.items():
        if not len(of_side):
            raise InputError(inputs[0], f"side {side}", "holds no picture", "give some")
    named = classes or _numbered(inputs[-1], np.concatenate(list(numbers.values())))
    if len(named) < 2:
        raise InputError(inputs[-1], named, "is one class only", "give pictures of two or more")
    for side, of_side in numbers.items():
        np.save(folder / f"{side}_labels.npy", of_side.astype(np.int64), allow_pickle=False)
    write_json(folder / "images.json", {"classes": named, "sides": list(numbers)})


def _require_names(inputs: Sequence[Path], classes: Sequence[str]) -> None:
    """Check the names of classes, which tables and a trained model hold.

    Raises
    ------
    InputError : a name can name no class, or two classes have one name.
    """
    for name in classes:
        if not is_class_name(name):
            raise InputError(
                inputs[0],
                name[:LONGEST_CLASS],
                "is no name of a class: too long, not printable, or a formula",
                f"rename it, with {LONGEST_CLASS} characters at most and none of =+-@ first",
            )
        if classes.count(name) > 1:
            raise InputError(inputs[0], name, "is the name of two classes", "rename one")


def _numbered(path: Path, numbers: np.ndarray) -> list[str]:
    """Return the names of classes that only have numbers: 0 to the largest.

    Parameters
    ----------
    path : of the labels, for the message.
    numbers : whole numbers from 0, one for each picture.

    Raises
    ------
    InputError : most of the classes have no picture, as if one label is wrong.
    """
    present, largest = len(np.unique(numbers)), int(numbers.max())
    if 2 * present < largest + 1:
        raise InputError(
            path,
            f"label {largest}",
            f"would make {largest + 1} classes, of which {present} have pictures",
            "mend the labels: they are the numbers of the classes, from 0",
        )
    return [str(number) for number in range(largest + 1)]


def _read(
    acquisition: Mapping[str, Any], inputs: Sequence[Path], size: tuple[int, int] | None
) -> tuple[list[str] | None, Pictures]:
    """Return the names of the classes, None if they are numbers, and the pictures."""
    kind = acquisition["type"]
    if kind in ("idx", "cifar"):
        accept, official = acquisition["cut_short"] == "accept", acquisition["official"]
        if kind == "idx":
            return None, idx.sides(inputs[0], accept, official)
        return cifar.sides(inputs[0], accept, official)
    if kind == "outlines":
        return _simulated(acquisition)
    if kind == "arrays":
        return None, _arrays(*inputs)
    return _folders(inputs[0], acquisition["colour"], size)


def _simulated(acquisition: Mapping[str, Any]) -> tuple[list[str], Pictures]:
    size = tuple(acquisition["size"] or OUTLINE_SIZE)
    parts = outlines(acquisition["per_class"], size, acquisition["difficulty"], acquisition["seed"])
    names = [f"outline{number}" for number in range(1, OUTLINES + 1)]
    return names, (("train", pictures, labels) for pictures, labels in parts)


def _folders(folder: Path, colour: str, size: tuple[int, int] | None) -> tuple[list[str], Pictures]:
    sides = sides_of(folder)
    classes = classes_of(sides["train"])
    for of_side in sides.values():
        others = set(classes_of(of_side)) - set(classes)
        if others:
            raise InputError(
                of_side,
                sorted(others),
                "is no class of the training side",
                "add it there, or take it away",
            )

    def read() -> Pictures:
        shape = None
        for side, of_side in sides.items():
            present = (name for name in classes if (of_side / name).is_dir())
            for name in present:
                paths = list(files_of(of_side / name))
                for path in tqdm(paths, desc=f"{side} {name}", disable=None):
                    picture = read_picture(path, colour, size)
                    shape = shape or picture.shape
                    if picture.shape != shape:
                        raise _unlike(path, shape, picture.shape)
                    yield side, picture[None], np.array([classes.index(name)])

    return classes, read()


def listed(folder: Path) -> tuple[dict[str, int], int]:
    """Return the number of pictures in the folders of each side, and of classes, without reading.

    Raises
    ------
    InputError : there is no such folder, or it holds other than folders of pictures.
    """
    sides = sides_of(folder)
    classes = classes_of(sides["train"])
    pictures = {
        side: sum(len(list(files_of(of_side / name))) for name in folders_of(of_side))
        for side, of_side in sides.items()
    }
    return pictures, len(classes)


def sides_of(folder: Path) -> dict[str, Path]:
    """Return the folder of each side: that of `train` is the folder itself without sides in it.

    Raises
    ------
    InputError : there is no such folder; or beside `train` and another side it holds a folder that
        is no side, or two of one side.
    """
    names = folders_of(folder)
    sides = {
        # Of `val` and `validation`, the shorter one is refused below.
        side: max(present, key=len)
        for side, named in FOLDERS.items()
        if (present := [name for name in names if named.fullmatch(name)])
    }
    if "train" not in sides or len(sides) == 1:
        return {"train": folder}
    for name in names:
        if name not in sides.values():
            raise InputError(
                folder / name,
                name,
                f"would not be read, as {', '.join(sides.values())} beside it are the sides",
                "take it away",
            )
    return {side: folder / name for side, name in sides.items()}


def _unlike(path: Path, first: tuple[int, ...], own: tuple[int, ...]) -> InputError:
    def words(shape: tuple[int, ...]) -> str:
        return " × ".join(map(str, shape))

    return InputError(
        path,
        words(own),
        f"is another height, width or number of colours than that of the first, {words(first)}",
        "set size, and colour: grey or rgb, to bring all pictures to one form",
    )


def _arrays(images: Path, labels: Path) -> Pictures:
    pictures, numbers = map(_mapped, (images, labels))
    if pictures.ndim == 3:
        pictures = pictures[..., None]
    if pictures.ndim != 4 or pictures.dtype != np.uint8 or pictures.shape[-1] not in (1, 3):
        raise InputError(
            images,
            f"{pictures.dtype} of shape {pictures.shape}",
            "is not uint8 of shape (pictures, height, width[, 1 or 3])",
            "save it so, with numpy.save",
        )
    if not len(pictures):
        raise InputError(images, images.name, "holds no picture", "give some")
    whole = numbers.dtype.kind in "iu" and numbers.shape == pictures.shape[:1]
    if not whole or numbers.min() < 0:
        raise InputError(
            labels,
            f"{numbers.dtype} of shape {numbers.shape}",
            f"is not a class number from 0 for each of the {len(pictures)} pictures",
            "save it so, with numpy.save",
        )
    for begin in range(0, len(pictures), idx.ROWS):
        rows = slice(begin, begin + idx.ROWS)
        yield "train", pictures[rows], numbers[rows]


def _mapped(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(
            path, path.name, f"cannot be read: {error}", "give a .npy file without objects"
        ) from error
