"""Read pictures with Pillow, convert them to one size and colour, and list pictures of folders."""

import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import ExifTags, Image

from escala.core.errors import InputError
from escala.data.images import COLOURS
from escala.data.paths import is_hidden

ENDINGS = (".png", ".jpg", ".jpeg")
#: Formats that are read, by Pillow's names. The ending of a file does not matter.
FORMATS = ("PNG", "JPEG")
#: Modes of Pillow with one byte for each colour, and the mode to which each is converted.
_MODES = {"1": "L", "L": "L", "LA": "L", "P": "RGB", "RGB": "RGB", "RGBA": "RGB"}
#: The first bytes of a PNG file.
_PNG = b"\x89PNG\r\n\x1a\n"
#: The operation that turns a picture upright, by EXIF's tag Orientation (CIPA DC-008).
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
#: Names of a folder of each side, in small or capital letters; also `seg_train`, `training_set`, ….
FOLDERS = {
    side: re.compile(rf"(?:seg[_-])?(?:{names})(?:[ _-]?(?:set|data|images))?", re.IGNORECASE)
    for side, names in (
        ("train", "train(?:ing)?"),
        ("validation", "val(?:id(?:ation)?)?|dev"),
        ("test", "test(?:ing)?"),
    )
}

Colour = Literal["as-is", "grey", "rgb"]


def read_picture(path: Path, colour: Colour, size: tuple[int, int] | None) -> np.ndarray:
    """Return a PNG or JPEG file, uint8 (height, width, 1 or 3), turned according to its EXIF data.

    A picture with unreadable EXIF data is not turned; a warning is printed once for each folder.
    Only grey, palette and RGB with at most 8 bits a colour are accepted.
    """
    try:
        # Pillow warns of damaged EXIF data, which `_upright` handles.
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(path, formats=FORMATS) as opened,
        ):
            mode = opened.mode
            opened.load()
            picture = _upright(opened, path)
    except FileNotFoundError:
        raise InputError(path, path.name, "no such file", "name an existing file") from None
    except Exception as error:
        # Pillow raises whatever its reader met.
        reason = f"cannot be read as PNG or JPEG: {error}"
        if not path.stat().st_size:
            reason = "is empty"
        raise InputError(path, path.name, reason, "repair or remove the file") from error
    # Pillow reduces the bits of PNG to 8 silently. A PNG file states them in its byte 24, in the
    # chunk IHDR of its specification. JPEG files that Pillow reads have 8.
    with open(path, "rb") as file:
        begin = file.read(25)
    bits = begin[24] if begin.startswith(_PNG) else 8
    if mode not in _MODES or bits > 8:
        reason = "is not grey, palette or RGB with 8 bits a colour"
        remedy = "save it in grey or RGB, with 8 bits a colour"
        raise InputError(path, f"mode {mode}, {bits} bits a colour", reason, remedy)
    return _array(picture.convert(_MODES[mode]), colour, size)


#: Folders for which a warning about EXIF data was printed.
_warned: set[Path] = set()


def _upright(picture: Image.Image, path: Path) -> Image.Image:
    """Return a loaded picture as its camera saw it.

    Pillow's `exif_transpose` also writes new EXIF data, and fails if the EXIF data are damaged.
    """
    try:
        turn = _TURNS.get(picture.getexif().get(ExifTags.Base.Orientation))
    except Exception:
        # Pillow raises whatever its reader met.
        if path.parent not in _warned:
            _warned.add(path.parent)
            warning = (
                "has EXIF data that cannot be read, and is not turned; others here may be so too"
            )
            print(f"{path.parent}: {path.name} {warning}", file=sys.stderr)
        return picture
    return picture if turn is None else picture.transpose(turn)


def convert(pictures: np.ndarray, colour: Colour, size: tuple[int, int] | None) -> np.ndarray:
    """Return pictures, uint8 (pictures, height, width, 1 or 3), in a colour and a size."""
    colours = COLOURS.get(colour, pictures.shape[-1])
    shape = (*(size or pictures.shape[1:3]), colours)
    if pictures.shape[1:] == shape or not len(pictures):
        return pictures.reshape(-1, *shape)
    images = (
        Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture)
        for picture in pictures
    )
    return np.stack([_array(image, colour, size) for image in images])


def _array(picture: Image.Image, colour: Colour, size: tuple[int, int] | None) -> np.ndarray:
    """Return a picture in a colour and a size, uint8 (height, width, 1 or 3)."""
    if colour != "as-is":
        picture = picture.convert("L" if colour == "grey" else "RGB")
    if size is not None:
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    array = np.asarray(picture)
    return array[..., None] if array.ndim == 2 else array


def folders_of(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, in alphabetical order."""
    if not folder.is_dir():
        raise InputError(folder, folder.name, "no such folder", "name the folder of the classes")
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not is_hidden(path))


def classes_of(folder: Path) -> list[str]:
    """Return the names of the folders of classes in a folder; refuse fewer than two classes."""
    classes = folders_of(folder)
    if len(classes) > 1:
        return classes
    reason, remedy = "holds fewer than two folders of classes", "add a folder for each class"
    if classes:
        inner = f"if the classes are in {classes[0]}, name it or move its folders up"
        remedy = f"{inner}; else {remedy}"
    elif any(path.suffix.lower() in ENDINGS for path in folder.iterdir()):
        reason = "holds pictures, and no folder for each class"
        remedy = "move the pictures of each class into a folder with its name; remove those "
        remedy += "whose class is not known"
    raise InputError(folder, classes, reason, remedy)


def files_of(folder: Path) -> Iterator[Path]:
    """Yield a folder's PNG and JPEG files by name; refuse other content, and no content."""
    paths = sorted(file for file in folder.iterdir() if not is_hidden(file))
    for path in paths:
        if path.is_dir():
            reason = "is a folder among pictures, and would not be read"
            remedy = "remove it; or name the folder whose folders are the classes; or call the "
            remedy += "folders of the sides train, validation and test"
            raise InputError(path, path.name, reason, remedy)
        if path.suffix.lower() not in ENDINGS:
            remedy = f"remove it; {', '.join(ENDINGS)} are read"
            raise InputError(path, path.name, "is not a PNG or JPEG file", remedy)
    if not paths:
        remedy = "add some, or leave the folder out"
        raise InputError(folder, folder.name, "holds no picture", remedy)
    yield from paths


def count_pictures(folder: Path) -> dict[str, int]:
    """Return the number of pictures of each side by file names; refuse folders as `sides_of`."""
    sides = sides_of(folder)
    classes_of(sides["train"])
    return {
        side: sum(len(list(files_of(inner / name))) for name in folders_of(inner))
        for side, inner in sides.items()
    }


def sides_of(folder: Path) -> dict[str, Path]:
    """Return the folder of each side; a folder without folders of sides is itself the side `train`.

    If there are folders of `train` and of another side, every further folder must be a side. A
    second folder of a side is refused.
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
            reason = f"would not be read, because the sides here are {', '.join(sides.values())}"
            raise InputError(folder / name, name, reason, "remove it")
    return {side: folder / name for side, name in sides.items()}
