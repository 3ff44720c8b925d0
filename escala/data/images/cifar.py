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

OFFICIAL = "https://www.cs.toronto.edu/~kriz/cifar.html"
#: Bytes of a record, and records of a whole file.
RECORD, RECORDS = 1 + 32 * 32 * 3, 10000
NAMES = "batches.meta.txt"
_BATCH = re.compile(r"data_batch_([1-9]\d*)\.bin")
_TEST = "test_batch.bin"
#: Bytes that are unpacked at a time.
_BLOCK = 2**20
_REMEDY = f"get cifar-10-binary.tar.gz from {OFFICIAL}, and name it or the folder it unpacks to"
#: Files of other sets and forms, as their page names them.
_OTHERS = (
    (r"data_batch_\d|batches\.meta|cifar-10-python\.tar\.gz|cifar-10-batches-py",
     "CIFAR-10 in the pickled form for Python"),
    (r"(data_batch_\d|batches\.meta|cifar-10-.*|test_batch)\.mat|cifar-10-matlab\.tar\.gz",
     "CIFAR-10 in the form for Matlab"),
    (r"fine_label_names\.txt|cifar-100-.*", "CIFAR-100"),
)  # fmt: skip


def sides(
    path: Path, accept_cut: bool
) -> tuple[list[str], Iterator[tuple[str, np.ndarray, np.ndarray]]]:
    """Return the names of the classes, and an iterator over the files.

    It yields `train` or `test`; uint8 (pictures, 32, 32, 3); uint8 (pictures,). A file that is
    missing or not whole, and a label without a class, are refused.
    """
    files = _files(path)
    batches = sorted(filter(_BATCH.fullmatch, files), key=lambda name: int(_BATCH.match(name)[1]))
    needed = {NAMES: NAMES in files, "data_batch_1.bin": batches, _TEST: _TEST in files}
    for name, found in needed.items():
        if not found:
            raise _missing(path, name)
    classes = files[NAMES].decode(errors="replace").split()
    read = (
        (side, *_read(path, name, files[name], len(classes), accept_cut))
        for side, names in (("train", batches), ("test", [_TEST]))
        for name in names
    )
    return classes, read


def _files(path: Path) -> dict[str, bytes]:
    """Return the content of the files of a folder or an archive, by name."""

    def serves(name: str) -> bool:
        return name in (NAMES, _TEST) or bool(_BATCH.fullmatch(name))

    # One byte more than a whole file shows that it is longer.
    most = RECORD * RECORDS + 1
    file = path
    try:
        if path.is_dir():
            found = {}
            for file in sorted(path.iterdir()):
                if serves(name := file.name.removesuffix(".gz")):
                    with gzip.open(file) if file.suffix == ".gz" else open(file, "rb") as content:
                        found[name] = content.read(most)
            return found
        _require_checksum(path)
        with tarfile.open(path) as archive:
            members = {PurePosixPath(each.name).name: each for each in archive if each.isfile()}
            # Read by name into memory: nothing is unpacked to a path that the archive names.
            return {
                name: archive.extractfile(each).read(most)
                for name, each in members.items()
                if serves(name)
            }
    except FileNotFoundError:
        raise InputError(path, path.name, "no such folder or archive", _REMEDY) from None
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise InputError(file, file.name, f"cannot be unpacked: {error}", _REMEDY) from error


def _require_checksum(path: Path) -> None:
    """Read a gzipped file to its end, where its checksum is: `tarfile` stops before it."""
    with gzip.open(path) as content:
        try:
            content.peek(1)
        except gzip.BadGzipFile:
            return
        while content.read(_BLOCK):
            pass


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


def _read(
    path: Path, name: str, content: bytes, classes: int, accept_cut: bool
) -> tuple[np.ndarray, np.ndarray]:
    whole, rest = divmod(len(content), RECORD)
    if len(content) > RECORDS * RECORD or not whole:
        reason = f"is not 1 to {RECORDS} records of {RECORD}"
        raise InputError(path / name, f"{len(content)} bytes", reason, _REMEDY)
    if (whole < RECORDS or rest) and not accept_cut:
        reason = "is cut short: it has fewer pictures than the standard file"
        remedy = f"{_REMEDY}; or set cut_short: accept"
        raise InputError(path / name, f"{whole} of {RECORDS}", reason, remedy)
    records = np.frombuffer(content, np.uint8, whole * RECORD).reshape(whole, RECORD)
    labels = records[:, 0]
    if labels.max() >= classes:
        row = int(labels.argmax())
        reason = f"has the label {labels[row]} of {classes}"
        raise InputError(path / name, f"picture {row + 1}", reason, _REMEDY)
    return records[:, 1:].reshape(whole, 3, 32, 32).transpose(0, 2, 3, 1), labels
