"""Read idx files, the format of MNIST: a header of big-endian numbers, and bytes."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from escala.core.errors import InputError
from escala.data.images.digests import require_md5

#: Stems of the files of images and labels, by side.
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
#: Where MNIST is from, and the mirror that torchvision.datasets.MNIST downloads it from.
OFFICIAL = "https://yann.lecun.com/exdb/mnist/"
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
PLACES = f"{OFFICIAL} or its mirror {MIRROR}"
#: MD5 of MNIST's files, as torchvision.datasets.MNIST lists them.
DIGESTS = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
#: Bytes that a packed file may unpack to: 40 times MNIST's pictures.
MOST_BYTES = 2**31
#: Bytes that are unpacked at a time.
_BLOCK = 2**20
#: The code of unsigned bytes, the only type that is read.
_BYTES = 8
#: Pictures that are yielded at a time.
ROWS = 4096


def sides(
    folder: Path, accept_cut: bool, official: bool
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield side, pictures and labels of the files in a folder, a side after the other.

    Yields
    ------
    `train` or `test`; uint8 (pictures, height, width, 1); uint8 (pictures,).

    Raises
    ------
    InputError : a file is missing or not whole, is no idx file of bytes, or has another digest.
    """
    for side, stems in FILES.items():
        paths = [_file(folder, stem, official) for stem in stems]
        if official:
            for stem, path in zip(stems, paths, strict=True):
                remedy = f"get {stem}.gz from {PLACES}; or set official: false"
                require_md5(path, DIGESTS[stem], "MNIST's file", remedy)
        images, labels = (
            _read(path, dimensions, accept_cut)
            for path, dimensions in zip(paths, (3, 1), strict=True)
        )
        if len(images) != len(labels) and not accept_cut:
            raise InputError(
                paths[1],
                f"{len(labels)} labels",
                f"are not those of the {len(images)} pictures in {paths[0].name}",
                f"get both files again, from {PLACES}",
            )
        whole = min(len(images), len(labels))
        yield side, images[:whole, ..., None], labels[:whole]


def require_named(folder: Path) -> None:
    """Refuse a folder with files of EMNIST, and none of MNIST's names.

    Raises
    ------
    InputError : it is such a folder.
    """
    pictures = sorted(each.name for each in folder.glob("*-images[-.]idx3-ubyte*"))
    if pictures and not any(name.startswith(("train-", "t10k-")) for name in pictures):
        stems = ", ".join(stem for stems in FILES.values() for stem in stems)
        raise InputError(
            folder,
            pictures[0],
            "is no name of MNIST's files, but like those of EMNIST or QMNIST",
            f"copy the four files of one set into a folder of their own, with the names {stems}",
        )


def _file(folder: Path, stem: str, official: bool) -> Path:
    """Return the file of a stem, plain or packed; digests are published of packed files only.

    Some programs unpack `train-images-idx3-ubyte` as `train-images.idx3-ubyte`.
    """
    names = (stem, stem.replace("-idx", ".idx"))
    for ending in (".gz",) if official else ("", ".gz"):
        for name in names:
            path = folder / f"{name}{ending}"
            if path.is_file():
                return path
    require_named(folder)
    remedy = f"get it from {PLACES} and name its folder"
    if official:
        reason = "no such file, and official: true needs it"
        raise InputError(folder, f"{stem}.gz", reason, f"{remedy}; or set official: false")
    raise InputError(folder, stem, "no such file, nor with .gz", remedy)


def _read(path: Path, dimensions: int, accept_cut: bool) -> np.ndarray:
    """Return the content of a file, uint8 of so many dimensions."""
    content = _bytes(path, accept_cut)
    header = 4 * (1 + dimensions)
    if len(content) < header or content[:4] != bytes([0, 0, _BYTES, dimensions]):
        raise InputError(
            path,
            f"begins with {content[:4].hex(' ') or 'nothing'}",
            f"is no idx file of bytes in {dimensions} dimensions (00 00 08 {dimensions:02x})",
            f"get it again, from {PLACES}",
        )
    rows, *shape = np.frombuffer(content[4:header], ">u4").tolist()
    body = content[header:]
    each = int(np.prod(shape, dtype=np.int64)) if shape else 1
    if not each or (len(body) > rows * each):
        raise InputError(
            path,
            f"{len(body)} bytes",
            f"do not fit its header: {rows} of {' × '.join(map(str, shape)) or 1} bytes",
            f"get it again, from {PLACES}",
        )
    if len(body) < rows * each and not accept_cut:
        raise InputError(
            path,
            f"{len(body) // each} of {rows}",
            "is cut short: its header counts more than it holds",
            f"get it again, from {PLACES}; or set cut_short: accept",
        )
    whole = min(rows, len(body) // each)
    if rows and not whole:
        reason = f"holds none of the {rows} that its header counts"
        raise InputError(path, path.name, reason, f"get it again, from {PLACES}")
    return np.frombuffer(body[: whole * each], np.uint8).reshape(whole, *shape)


def _bytes(path: Path, accept_cut: bool) -> bytes:
    """Return the content of a file, unpacked; of a packed file that ends early, what it holds.

    Raises
    ------
    InputError : a packed file is damaged, holds more than `MOST_BYTES`, or ends early without
        `accept_cut`.
    """
    if path.suffix != ".gz":
        return path.read_bytes()
    remedy = f"get it again, from {PLACES}"
    blocks, held = [], 0
    try:
        # It may consist of several members, as of `bgzip`.
        with gzip.open(path) as content:
            while block := content.read1(_BLOCK):
                blocks.append(block)
                held += len(block)
                if held > MOST_BYTES:
                    reason = f"cannot be unpacked: it holds more than {MOST_BYTES:,} bytes"
                    raise InputError(path, path.name, reason, remedy)
    except EOFError:
        if not accept_cut:
            remedy = f"{remedy}; or set cut_short: accept"
            reason = "cannot be unpacked: it ends early"
            raise InputError(path, path.name, reason, remedy) from None
    except (OSError, zlib.error) as error:
        raise InputError(path, path.name, f"cannot be unpacked: {error}", remedy) from error
    return b"".join(blocks)
