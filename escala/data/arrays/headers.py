"""Arrays in `.npy` and `.npz` files: how they are named, and what their headers tell."""

from __future__ import annotations

import errno
import math
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from escala.core.errors import InputError

_IN_ARCHIVE = re.compile(r"(.+?\.npz):(.+)", re.IGNORECASE | re.DOTALL)
#: What a workload may declare as the dtype of an input, and unsigned integers of 32 and 64 bits.
DTYPES = (
    "bool",
    *(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
)
_NO_NUMBERS = {
    "O": "holds Python objects, which are not read: they may run code",
    "U": "holds texts",
    "S": "holds texts",
    "M": "holds dates",
    "m": "holds spans of time",
    "V": "holds records of several fields, or numbers that NumPy does not know",
    "c": "holds complex numbers",
}


class Named(NamedTuple):
    """An array as a user names it: a file, and its name in an archive."""

    path: Path
    member: str | None

    def __str__(self) -> str:
        return f"{self.path}:{self.member}" if self.member else str(self.path)


class Header(NamedTuple):
    """The form of an array; `dtype` may have the other order of bytes."""

    shape: tuple[int, ...]
    dtype: np.dtype


def named(text: str) -> Named:
    """Return the array that a text names: `FILE.npy`, `FILE.npz:NAME` or `FILE.npz`."""
    found = _IN_ARCHIVE.fullmatch(text)
    return Named(Path(found[1]), found[2]) if found else Named(Path(text), None)


def members(path: Path, where: str) -> list[str]:
    """Return the names of the arrays in a `.npz` file, or refuse the file as `opened`."""
    with _errors(where, path), zipfile.ZipFile(path) as archive:
        return [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]


def header(array: Named, where: str) -> Header:
    """Return the form of an array of numbers with rows, after checking that its file is whole.

    `where` is its key in the experiment, for messages.
    """
    with opened(array, where) as (handle, size):
        found = _header(handle)
        held = size - handle.tell()
    wanted = math.prod(found.shape) * found.dtype.itemsize
    if found.dtype.name not in DTYPES:
        reason = _NO_NUMBERS.get(found.dtype.kind, f"holds {found.dtype.name}")
        raise InputError(where, str(array), reason, f"save numbers of {', '.join(DTYPES)}")
    if not found.shape or not math.prod(found.shape):
        rows = "has no axis, and so no rows" if not found.shape else f"has shape {found.shape}"
        raise InputError(where, str(array), rows, "give an array with a row at least")
    if held < wanted:
        reason = f"is cut short: its header announces {wanted} bytes, and it holds {held}"
        raise InputError(where, str(array), reason, "copy or save the file again")
    return found


@contextmanager
def opened(array: Named, where: str) -> Iterator[tuple[BinaryIO, int]]:
    """Yield the bytes of an array, with its header, and their number.

    An array that is not there, and a file that cannot be read, are refused.
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
            reason = f"holds no {member}; it {reason}" if member else reason
            remedy = f"name one of them: {path.name}:{known[0]}" if known else "save arrays in it"
            raise InputError(where, str(array), reason, remedy)
        with zipfile.ZipFile(path) as archive, archive.open(f"{member}.npy") as handle:
            yield handle, archive.getinfo(f"{member}.npy").file_size


def _header(handle: BinaryIO) -> Header:
    version = npy.read_magic(handle)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"is of version {version} of the format")
    shape, _, dtype = read(handle)
    return Header(shape, dtype)


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
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # Of the file that is being written.
            raise
        reason = f"cannot be read: {error.strerror or error}"
        raise InputError(where, str(path), reason, remedy) from error
    except (ValueError, EOFError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        reason = f"is not a file of NumPy, or is damaged: {error}"
        raise InputError(where, str(path), reason, remedy) from error
