"""Read pictures with Pillow, and bring them to one size and colour."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageOps

from escala.core.errors import InputError

ENDINGS = (".png", ".jpg", ".jpeg")
#: Formats that are read, whatever the ending, by their names in Pillow.
FORMATS = ("PNG", "JPEG")
#: Modes of Pillow that hold a byte a colour, and the mode that each is read as.
_MODES = {"1": "L", "L": "L", "LA": "L", "P": "RGB", "RGB": "RGB", "RGBA": "RGB"}
#: The first bytes of a PNG file.
_PNG = b"\x89PNG\r\n\x1a\n"
_COLOURS = {"grey": "L", "rgb": "RGB"}

Colour = Literal["as-is", "grey", "rgb"]


def read_picture(path: Path, colour: Colour, size: tuple[int, int] | None) -> np.ndarray:
    """Return a PNG or JPEG file, uint8 (height, width, 1 or 3), turned as its EXIF data tell.

    Raises
    ------
    InputError : there is no such file, or it is no picture of at most 8 bits a colour in grey,
        palette or RGB.
    """
    try:
        with Image.open(path, formats=FORMATS) as opened:
            mode, picture = opened.mode, ImageOps.exif_transpose(opened)
    except FileNotFoundError:
        raise InputError(path, path.name, "no such file", "name an existing file") from None
    except Exception as error:
        # Pillow raises whatever its reader met.
        reason = "is empty" if not path.stat().st_size else f"is no PNG or JPEG: {error}"
        raise InputError(path, path.name, reason, "mend the file, or take it away") from error
    bits = _bits(path)
    if mode not in _MODES or bits > 8:
        raise InputError(
            path,
            f"mode {mode}, {bits} bits a colour",
            "is not grey, palette or RGB with 8 bits a colour",
            "save it in grey or RGB, with 8 bits a colour",
        )
    return _array(picture.convert(_MODES[mode]), colour, size)


def brought_to(pictures: np.ndarray, colour: Colour, size: tuple[int, int] | None) -> np.ndarray:
    """Return pictures, uint8 (pictures, height, width, 1 or 3), in a colour and a size."""
    colours = {"grey": 1, "rgb": 3}.get(colour, pictures.shape[-1])
    wanted = (*(size or pictures.shape[1:3]), colours)
    if pictures.shape[1:] == wanted:
        return pictures
    if not len(pictures):
        return np.empty((0, *wanted), np.uint8)
    images = (Image.fromarray(each[..., 0] if each.shape[-1] == 1 else each) for each in pictures)
    return np.stack([_array(image, colour, size) for image in images])


def folders_of(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, in alphabetical order.

    Raises
    ------
    InputError : there is no such folder.
    """
    if not folder.is_dir():
        raise InputError(folder, folder.name, "no such folder", "name the one with the classes")
    return sorted(each.name for each in folder.iterdir() if each.is_dir() and _visible(each))


def classes_of(folder: Path) -> list[str]:
    """Return the names of the folders of classes in a folder, in alphabetical order.

    Raises
    ------
    InputError : there is no such folder, or it holds fewer than two.
    """
    classes = folders_of(folder)
    if len(classes) < 2:
        raise InputError(
            folder,
            classes,
            "holds fewer than two folders of classes",
            "add a folder for each class",
        )
    return classes


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the PNG and JPEG files of a folder, by name.

    Raises
    ------
    InputError : it holds none, or another file or a folder.
    """
    paths = sorted(each for each in folder.iterdir() if _visible(each))
    for path in paths:
        if path.is_dir():
            raise InputError(
                path,
                path.name,
                "is a folder among pictures, and would not be read",
                "take it away, or move its pictures up",
            )
        if path.suffix.lower() not in ENDINGS:
            raise InputError(
                path, path.name, "is no PNG or JPEG", f"take it away; {', '.join(ENDINGS)} are read"
            )
    if not paths:
        raise InputError(
            folder, folder.name, "holds no picture", "add some, or leave the folder out"
        )
    yield from paths


def _bits(path: Path) -> int:
    """Return the bits a colour of a PNG or JPEG file; Pillow reduces those of PNG to 8 silently.

    A PNG file states them in its byte 24, in the chunk IHDR of the PNG specification. JPEG files
    that Pillow reads have 8.
    """
    with open(path, "rb") as file:
        begin = file.read(25)
    return begin[24] if begin.startswith(_PNG) else 8


def _visible(path: Path) -> bool:
    return not path.name.startswith(".")


def _array(picture: Image.Image, colour: Colour, size: tuple[int, int] | None) -> np.ndarray:
    if colour in _COLOURS:
        picture = picture.convert(_COLOURS[colour])
    if size is not None:
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    array = np.asarray(picture)
    return array[..., None] if array.ndim == 2 else array
