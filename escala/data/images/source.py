"""Make pictures of one size from a source: `SIDE_images.npy`, `SIDE_labels.npy`, `images.json`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.files import write_json
from escala.data.base import require_class_names
from escala.data.images import OUTLINE_SIZE, OUTLINES
from escala.data.images.pictures import classes_of, convert, files_of, read_picture, sides_of
from escala.data.images.published import cifar10, mnist
from escala.data.splits import ArrayWriter, open_array

#: Harmonics that give a class its form, and a single outline its own.
HARMONICS = 7
#: Points of an outline, and seed of the forms of the classes: they are the same in every data set.
POINTS, FORMS = 160, 2021
#: How far the harmonics of classes lie apart, and those of single outlines of one class at
#: difficulty 1, as fractions of the radius.
BETWEEN, WITHIN = 0.10, 0.14
#: Pictures that are yielded at a time.
ROWS = 512
#: Higher harmonics are smaller, so that outlines are smooth.
_ORDERS = np.sqrt(np.arange(1, HARMONICS + 1))
_ANGLES = np.linspace(0, 2 * np.pi, POINTS, endpoint=False)

#: Side, pictures and labels: uint8 (pictures, height, width, colours) and whole (pictures,).
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
    blocks: dict[str, list[np.ndarray]] = {}
    with ExitStack() as files:
        writers: dict[str, ArrayWriter] = {}
        shape = None
        for side, pictures, block_labels in parts:
            pictures = convert(pictures, acquisition["colour"], size)
            shape = shape or pictures.shape[1:]
            _require_shape(inputs[0] if inputs else folder, pictures.shape[1:], shape)
            if side not in writers:
                path = folder / f"{side}_images.npy"
                writers[side] = files.enter_context(open_array(path, shape, np.uint8))
            writers[side].append(pictures)
            blocks.setdefault(side, []).append(block_labels)
    labels = {side: np.concatenate(of_side) for side, of_side in blocks.items()}
    for side, of_side in labels.items():
        if not len(of_side):
            raise InputError(inputs[0], f"side {side}", "holds no picture", "give some")
    if not classes:  # The labels are numbers of the classes.
        present = np.unique(np.concatenate(list(labels.values())))
        count = int(present.max()) + 1
        if 2 * len(present) < count:
            reason = f"would make {count} classes, of which {len(present)} have pictures"
            remedy = "correct the labels: they are the numbers of the classes, from 0"
            raise InputError(inputs[-1], f"label {count - 1}", reason, remedy)
        classes = [str(number) for number in range(count)]
    if len(classes) < 2:
        raise InputError(inputs[-1], classes, "is one class only", "give pictures of two or more")
    for side, of_side in labels.items():
        np.save(folder / f"{side}_labels.npy", of_side.astype(np.int64), allow_pickle=False)
    write_json(folder / "images.json", {"classes": classes, "sides": list(labels)})


def _read(
    acquisition: Mapping[str, Any], inputs: Sequence[Path], size: tuple[int, int] | None
) -> tuple[list[str] | None, Pictures]:
    """Return the names of the classes, None if they are numbers, and the pictures."""
    kind = acquisition["type"]
    if kind == "idx":
        return None, mnist(inputs[0], acquisition["cut_short"] == "accept")
    if kind == "cifar":
        return cifar10(inputs[0], acquisition["cut_short"] == "accept")
    if kind == "outlines":
        options = (acquisition[key] for key in ("difficulty", "seed"))
        parts = outlines(acquisition["per_class"], size or OUTLINE_SIZE, *options)
        names = [f"outline{number}" for number in range(1, OUTLINES + 1)]
        return names, (("train", pictures, labels) for pictures, labels in parts)
    return _folders(inputs[0], acquisition["colour"], size)


def _folders(folder: Path, colour: str, size: tuple[int, int] | None) -> tuple[list[str], Pictures]:
    """Return the names of the classes, and an iterator over the pictures, which have one form."""
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
        form, first_form = (" × ".join(map(str, sizes)) for sizes in (shape, first))
        reason = f"differs in size or colours from the first picture, {first_form}"
        remedy = "set size, and colour: grey or rgb, to bring all pictures to one form"
        raise InputError(path, form, reason, remedy)


def outlines(
    per_class: int, size: tuple[int, int], difficulty: float, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pictures and classes, some at a time; classes take turns.

    Pictures are uint8 (pictures, height, width, 1), 0 outside and 255 inside. With difficulty 0, up
    to 1, outlines of a class differ in their pose only.
    """
    random = np.random.default_rng(seed)
    labels = np.tile(np.arange(OUTLINES), per_class)
    forms = np.random.default_rng(FORMS).normal(0, BETWEEN, (OUTLINES, 2, HARMONICS)) / _ORDERS
    angles = np.arange(2, HARMONICS + 2)[:, None] * _ANGLES
    for begin in range(0, len(labels), ROWS):
        classes = labels[begin : begin + ROWS]
        variation = random.normal(0, WITHIN * difficulty, (len(classes), 2, HARMONICS)) / _ORDERS
        harmonics = forms[classes] + variation
        # Radii at each angle, float64 (outlines, POINTS), about 1.
        radii = 1 + harmonics[:, 0] @ np.cos(angles) + harmonics[:, 1] @ np.sin(angles)
        pictures = [_draw(outline, size, random) for outline in np.maximum(radii, 0.2)]
        yield np.stack(pictures)[..., None], classes


def _draw(radii: np.ndarray, size: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Return one filled outline, twice as long as high, turned, scaled and moved at random."""
    height, width = size
    x, y = 2 * radii * np.cos(_ANGLES), radii * np.sin(_ANGLES)
    turn, mirror = random.uniform(-0.4, 0.4), random.choice([-1, 1])
    scale = random.uniform(0.11, 0.17) * min(height * 1.33, width)
    turned = (
        x * mirror * np.cos(turn) - y * np.sin(turn),
        x * mirror * np.sin(turn) + y * np.cos(turn),
    )
    centre = random.uniform(0.44, 0.56, 2) * (width, height)
    points = np.stack(turned, axis=1) * scale + centre
    picture = Image.new("L", (width, height))
    ImageDraw.Draw(picture).polygon([tuple(point) for point in points], fill=255)
    return np.asarray(picture)
