"""Arrays in `.npy` and `.npz` files: their names, their headers, and the settings for both."""

import errno
import math
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from escala.core.errors import InputError

_IN_ARCHIVE = re.compile(r"(.+?\.npz):(.+)", re.IGNORECASE | re.DOTALL)
#: The dtypes that a workload may declare for an input, and unsigned integers of 32 and 64 bits.
DTYPES = (
    "bool",
    *(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
)
#: Words in the names of targets, and of the arrays of a side.
_TARGETS = {"y", "label", "labels", "target", "targets", "class", "classes", "output", "outputs"}
_SIDES = {"train": "train", "training": "train", "tr": "train"}
_SIDES |= dict.fromkeys(("test", "testing", "te"), "test")
_SIDES |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")
#: Targets with more different numbers than this are a quantity, not classes.
MOST_CLASSES = 1000


class Named(NamedTuple):
    """An array as a user names it: a file, and its name in an archive."""

    path: Path
    member: str | None

    def __str__(self) -> str:
        return f"{self.path}:{self.member}" if self.member else str(self.path)


class Header(NamedTuple):
    """The dtype and shape of an array; the order of bytes may differ from this machine's."""

    shape: tuple[int, ...]
    dtype: np.dtype


def parse_name(text: str) -> Named:
    """Return the array that a text names: `FILE.npy`, `FILE.npz:NAME` or `FILE.npz`."""
    match = _IN_ARCHIVE.fullmatch(text)
    return Named(Path(match[1]), match[2]) if match else Named(Path(text), None)


def members(path: Path, where: str) -> list[str]:
    """Return the names of the arrays in a `.npz` file; see `open_bytes` for refused files."""
    with _errors(where, path), zipfile.ZipFile(path) as archive:
        return [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]


def header(array: Named, where: str) -> Header:
    """Return the header of an array of numbers with rows, after a check that its file is whole.

    `where` is its key in the experiment, for messages.
    """
    with open_bytes(array, where) as (handle, file_bytes):
        version = npy.read_magic(handle)
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"is of version {version} of the format")
        shape, _, dtype = readers[version](handle)
        held = file_bytes - handle.tell()
    announced = math.prod(shape) * dtype.itemsize
    if dtype.name not in DTYPES:
        reason = f"holds {dtype.name}"
        if dtype.hasobject:
            reason = "holds Python objects, which are not read: they may run code"
        raise InputError(where, str(array), reason, f"save numbers of {', '.join(DTYPES)}")
    if not shape or not math.prod(shape):
        rows = "has no axis, and so no rows" if not shape else f"has shape {shape}"
        raise InputError(where, str(array), rows, "give an array with a row at least")
    if held < announced:
        reason = f"is cut short: its header announces {announced} bytes, and the file holds {held}"
        raise InputError(where, str(array), reason, "copy or save the file again")
    return Header(shape, dtype)


@contextmanager
def open_bytes(array: Named, where: str) -> Iterator[tuple[BinaryIO, int]]:
    """Yield the file of an array, header included, and its number of bytes.

    An array that does not exist, and a file that cannot be read, are refused.
    """
    path = array.path
    with _errors(where, path):
        if not (path.is_file() or path.is_dir()) and path.exists():
            raise ValueError("it is a pipe, a socket or a device")
        if path.suffix.lower() != ".npz":
            with open(path, "rb") as handle:
                yield handle, path.stat().st_size
            return
        known = members(path, where)
        member = array.member or (known[0] if len(known) == 1 else None)
        if member not in known:
            reason = f"holds {', '.join(known) or 'no arrays'}"
            reason = f"holds no {member}; the file {reason}" if member else reason
            remedy = f"name an array: {path.name}:{known[0]}" if known else "save arrays in it"
            raise InputError(where, str(array), reason, remedy)
        with zipfile.ZipFile(path) as archive, archive.open(f"{member}.npy") as handle:
            yield handle, archive.getinfo(f"{member}.npy").file_size


@contextmanager
def _errors(where: str, path: Path) -> Iterator[None]:
    """Name the file and the key in every error."""
    remedy = "name a .npy file, or an array of a .npz file as FILE.npz:NAME"
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(where, str(path), "there is no such file", remedy) from None
    except OSError as error:
        if error.errno in (
            errno.ENOSPC,
            errno.EDQUOT,
        ):  # The disk is full.
            raise
        reason = f"cannot be read: {error.strerror or error}"
        raise InputError(where, str(path), reason, remedy) from error
    except (ValueError, EOFError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        reason = f"is not a file of NumPy, or is damaged: {error}"
        raise InputError(where, str(path), reason, remedy) from error


def settings_of(path: Path, data: str) -> dict[str, Any] | None:
    """Return the settings of a dataset from a `.npz` file or a folder of `.npy` files.

    The settings are `inputs` and `targets` of `train`, and of `test` and `validation` if the file
    or folder has arrays of these sides. `classes` is set if the targets are all whole numbers from
    0 to the largest target. The result is None for another sort of file or folder. Names that do
    not show the targets are refused. `data` is the path as the user wrote it.
    """
    if path.is_file() and path.suffix.lower() == ".npz":
        arrays = {name: f"{data}:{name}" for name in members(path, "data")}
    elif path.is_dir():
        folder = data.rstrip("/")
        arrays = {file.stem: f"{folder}/{file.name}" for file in sorted(path.glob("*.npy"))}
    else:
        arrays = {}
    if not arrays:
        return None
    sides = _divide(arrays, data)
    classes = _classes(path, sides["train"]["targets"])
    return sides | ({"classes": classes} if classes else {})


def _divide(arrays: dict[str, str], data: str) -> dict[str, dict[str, Any]]:
    """Return inputs and targets of each side, according to the words in the names of arrays.

    `arrays` gives, for the name of each array, its text in the settings.
    """
    sides: dict[str, dict[str, Any]] = {}
    for name, place in arrays.items():
        # `Xtrain`, `ytest` and the like are two words.
        spaced = re.sub(r"\b([XxYy])(train|test|val|valid)\b", r"\1-\2", name.replace("_", "-"))
        named = re.findall(r"[A-Za-z0-9]+", spaced)
        side = next((_SIDES[w.lower()] for w in named if w.lower() in _SIDES), "train")
        words = [w for w in named if w.lower() not in _SIDES]
        of_side = sides.setdefault(side, {"inputs": {}, "targets": []})
        if _TARGETS & {w.lower() for w in words}:
            of_side["targets"].append(place)
        else:
            key = "-".join(words)[:64] or "x"
            if other := of_side["inputs"].get(key):
                reason = f"{other} and {place} would both be the input {key} of {side}"
                remedy = "save each array once, or name them x_train, x_test and so on"
                raise InputError("data", data, reason, remedy)
            of_side["inputs"][key] = place
    complete = all(len(side["targets"]) == 1 and side["inputs"] for side in sides.values())
    if not complete or "train" not in sides:
        reason = f"holds the arrays {', '.join(arrays)}, and their names do not show what is input "
        remedy = "save them as x and y, or x_train, y_train, x_test, y_test; or write the "
        remedy += "experiment by hand: docs/start/your-data.md"
        raise InputError("data", data, f"{reason}and what is target", remedy)
    return {side: arrays | {"targets": arrays["targets"][0]} for side, arrays in sides.items()}


def _classes(path: Path, place: str) -> int | None:
    """Return the number of classes, if the targets contain every number from 0 to the largest."""
    member = parse_name(place).member
    where = path if member else path / Path(place).name
    with open_bytes(Named(where, member), "data") as (handle, _):
        try:
            targets = np.lib.format.read_array(handle, allow_pickle=False)
        except ValueError:
            return None
    if targets.dtype.kind not in "iub" or targets.shape[1:] not in ((), (1,)) or not targets.size:
        return None
    count = int(targets.max()) + 1
    in_range = targets.min() == 0 and 1 < count <= MOST_CLASSES
    return count if in_range and len(np.unique(targets)) == count else None
