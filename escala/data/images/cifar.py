"""Read the binary version of CIFAR-10: records of a label and a picture, colour by colour."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from escala.core.errors import InputError
from escala.data.images.digests import require_md5

OFFICIAL = "https://www.cs.toronto.edu/~kriz/cifar.html"
#: MD5 of cifar-10-binary.tar.gz, as that page gives it.
ARCHIVE = "c32a1d4ab5d03f1284b67883e8d87530"
#: Height, width, colours; bytes of a record; records of a whole file.
SHAPE, RECORD, RECORDS = (32, 32, 3), 1 + 32 * 32 * 3, 10000
NAMES = "batches.meta.txt"
_BATCH = re.compile(r"data_batch_([1-9]\d*)\.bin")
_TEST = "test_batch.bin"
#: First bytes of a gzipped file (RFC 1952, section 2.3.1), and bytes that are unpacked at a time.
_GZIP, _BLOCK = b"\x1f\x8b", 2**20


def sides(
    path: Path, accept_cut: bool, official: bool
) -> tuple[list[str], Iterator[tuple[str, np.ndarray, np.ndarray]]]:
    """Return the names of the classes, and an iterator over the files.

    Yields
    ------
    `train` or `test`; uint8 (pictures, 32, 32, 3); uint8 (pictures,).

    Raises
    ------
    InputError : a file is missing or not whole, a label has no class, or the archive has another
        digest.
    """
    if official:
        _require_official(path)
    files = _files(path)
    if NAMES not in files:
        raise _missing(path, NAMES)
    classes = files[NAMES].decode(errors="replace").split()
    batches = sorted(
        (name for name in files if _BATCH.fullmatch(name)),
        key=lambda name: int(_BATCH.fullmatch(name)[1]),
    )
    if not batches or _TEST not in files:
        raise _missing(path, _TEST if batches else "data_batch_1.bin")
    read = (
        (side, *_read(path, name, files[name], len(classes), accept_cut))
        for side, names in (("train", batches), ("test", [_TEST]))
        for name in names
    )
    return classes, read


def _files(path: Path) -> dict[str, bytes]:
    """Return the content of the files of a folder or an archive, by name."""
    wanted = {NAMES, _TEST}

    def serves(name: str) -> bool:
        return name in wanted or bool(_BATCH.fullmatch(name))

    # One byte more than a whole file shows that it is longer.
    most = RECORD * RECORDS + 1
    if path.is_dir():
        names = {file.name.removesuffix(".gz"): file for file in sorted(path.iterdir())}
        return {name: _content(file, most) for name, file in names.items() if serves(name)}
    try:
        _require_checksum(path)
        with tarfile.open(path) as archive:
            members = {
                PurePosixPath(member.name).name: member
                for member in archive
                if member.isfile() and serves(PurePosixPath(member.name).name)
            }
            # Read by name into memory: nothing is unpacked to a path that the archive names.
            return {name: archive.extractfile(each).read(most) for name, each in members.items()}
    except FileNotFoundError:
        raise InputError(path, path.name, "no such folder or archive", _REMEDY) from None
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise InputError(path, path.name, f"cannot be unpacked: {error}", _REMEDY) from error


def _content(file: Path, most: int) -> bytes:
    """Return the first bytes of a file, unpacked if it is gzipped."""
    if file.suffix != ".gz":
        return file.read_bytes()
    try:
        with gzip.open(file) as packed:
            return packed.read(most)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(file, file.name, f"cannot be unpacked: {error}", _REMEDY) from error


def _require_checksum(path: Path) -> None:
    """Read a gzipped file to its end, where its checksum is: `tarfile` stops before it.

    Raises
    ------
    OSError, EOFError, zlib.error : the file is damaged or ends early.
    """
    with open(path, "rb") as file:
        packed = file.read(len(_GZIP)) == _GZIP
    if packed:
        with gzip.open(path) as content:
            while content.read(_BLOCK):
                pass


_REMEDY = f"get cifar-10-binary.tar.gz from {OFFICIAL}, and name it or the folder it unpacks to"


#: Files of other sets and forms, as their page names them.
_OTHERS = (
    (r"data_batch_\d|batches\.meta|cifar-10-python\.tar\.gz|cifar-10-batches-py",
     "CIFAR-10 in the pickled form for Python"),
    (r"(data_batch_\d|batches\.meta|cifar-10-.*|test_batch)\.mat|cifar-10-matlab\.tar\.gz",
     "CIFAR-10 in the form for Matlab"),
    (r"fine_label_names\.txt|cifar-100-.*", "CIFAR-100"),
)  # fmt: skip


def other_form(names: Iterable[str]) -> str | None:
    """Return which other form of CIFAR files of these names are, None if they are none."""
    found = [form for name in names for known, form in _OTHERS if re.fullmatch(known, name)]
    return found[0] if found else None


def not_binary(path: Path, form: str) -> InputError:
    """Return the error for a path that holds another form of CIFAR."""
    return InputError(path, path.name, f"is {form}, which is not read", _REMEDY)


def _missing(path: Path, name: str) -> InputError:
    """Return the error for a folder or an archive without a file."""
    if path.is_dir():
        names = [each.name for each in path.iterdir()]
    else:
        with tarfile.open(path) as archive:
            names = [PurePosixPath(each).name for each in archive.getnames()]
    if form := other_form(names):
        return not_binary(path, form)
    if "cifar-10-batches-bin" in names and path.is_dir():
        remedy = f"name {path / 'cifar-10-batches-bin'}"
        return InputError(path, name, "no such file in it, but in a folder in it", remedy)
    return InputError(path, name, "no such file in it", _REMEDY)


def _require_official(path: Path) -> None:
    if not path.is_file():
        raise InputError(
            path, "official: true", "needs the archive", f"{_REMEDY}; or set official: false"
        )
    require_md5(path, ARCHIVE, "the official archive", _REMEDY)


def _read(
    path: Path, name: str, content: bytes, classes: int, accept_cut: bool
) -> tuple[np.ndarray, np.ndarray]:
    whole, rest = divmod(len(content), RECORD)
    if len(content) > RECORDS * RECORD or not whole:
        raise InputError(
            path / name,
            f"{len(content)} bytes",
            f"is not 1 to {RECORDS} records of {RECORD}",
            _REMEDY,
        )
    if (whole < RECORDS or rest) and not accept_cut:
        raise InputError(
            path / name,
            f"{whole} of {RECORDS}",
            "is cut short: it has fewer pictures than the standard file",
            f"{_REMEDY}; or set cut_short: accept",
        )
    records = np.frombuffer(content, np.uint8, whole * RECORD).reshape(whole, RECORD)
    labels = records[:, 0]
    if labels.max() >= classes:
        row = int(labels.argmax())
        raise InputError(
            path / name, f"picture {row + 1}", f"has the label {labels[row]} of {classes}", _REMEDY
        )
    height, width, colours = SHAPE
    pictures = records[:, 1:].reshape(whole, colours, height, width).transpose(0, 2, 3, 1)
    return pictures, labels
