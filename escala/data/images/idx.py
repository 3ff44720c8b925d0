"""Read idx files, the format of MNIST: a header of big-endian numbers, and bytes."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from escala.core.errors import InputError

#: Stems of the files of images and labels, by side.
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
#: Where MNIST is from, and the mirror that torchvision.datasets.MNIST downloads it from.
OFFICIAL = "https://yann.lecun.com/exdb/mnist/"
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
PLACES = f"{OFFICIAL} or its mirror {MIRROR}"
_AGAIN = f"get it again, from {PLACES}"
#: Bytes that a packed file may unpack to: 40 times MNIST's pictures.
MOST_BYTES = 2**31
#: Bytes that are unpacked at a time.
_BLOCK = 2**20
#: The code of unsigned bytes, the only type that is read.
_BYTES = 8


def sides(folder: Path, accept_cut: bool) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield side, pictures and labels of the files in a folder, a side after the other.

    They are `train` or `test`; uint8 (pictures, height, width, 1); uint8 (pictures,). A file that
    is missing or not whole, or is not an idx file of bytes, is refused.
    """
    for side, stems in FILES.items():
        paths = [_file(folder, stem) for stem in stems]
        images, labels = _read(paths[0], 3, accept_cut), _read(paths[1], 1, accept_cut)
        if len(images) != len(labels) and not accept_cut:
            reason = f"are not those of the {len(images)} pictures in {paths[0].name}"
            remedy = f"get both files again, from {PLACES}"
            raise InputError(paths[1], f"{len(labels)} labels", reason, remedy)
        whole = min(len(images), len(labels))
        yield side, images[:whole, ..., None], labels[:whole]


def require_named(folder: Path) -> None:
    """Refuse a folder with files of EMNIST, and none of MNIST's names."""
    pictures = sorted(each.name for each in folder.glob("*-images[-.]idx3-ubyte*"))
    if pictures and not any(name.startswith(("train-", "t10k-")) for name in pictures):
        stems = ", ".join(stem for stems in FILES.values() for stem in stems)
        reason = "is not a name of MNIST's files, but looks like one of EMNIST or QMNIST"
        remedy = "copy the four files of one set into a folder of their own, with the names "
        raise InputError(folder, pictures[0], reason, remedy + stems)


def _file(folder: Path, stem: str) -> Path:
    """Return the file of a stem, plain or packed.

    Some programs unpack `train-images-idx3-ubyte` as `train-images.idx3-ubyte`.
    """
    for ending in ("", ".gz"):
        for name in (stem, stem.replace("-idx", ".idx")):
            path = folder / f"{name}{ending}"
            if path.is_file():
                return path
    require_named(folder)
    remedy = f"get it from {PLACES} and name its folder"
    raise InputError(folder, stem, "no such file, nor with .gz", remedy)


def _read(path: Path, dimensions: int, accept_cut: bool) -> np.ndarray:
    """Return the content of a file, uint8 with this number of dimensions."""
    content = _bytes(path, accept_cut)
    header = 4 * (1 + dimensions)
    if len(content) < header or content[:4] != bytes([0, 0, _BYTES, dimensions]):
        value = f"begins with {content[:4].hex(' ') or 'nothing'}"
        reason = (
            f"is not an idx file of bytes in {dimensions} dimensions (00 00 08 {dimensions:02x})"
        )
        raise InputError(path, value, reason, _AGAIN)
    rows, *shape = np.frombuffer(content[4:header], ">u4").tolist()
    body = content[header:]
    each = int(np.prod(shape, dtype=np.int64)) if shape else 1
    if not each or len(body) > rows * each:
        form = " × ".join(map(str, shape)) or 1
        reason = f"do not fit its header: {rows} of {form} bytes"
        raise InputError(path, f"{len(body)} bytes", reason, _AGAIN)
    whole = len(body) // each
    if len(body) < rows * each and not accept_cut:
        reason = "is cut short: its header counts more than it holds"
        remedy = f"{_AGAIN}; or set cut_short: accept"
        raise InputError(path, f"{whole} of {rows}", reason, remedy)
    if rows and not whole:
        reason = f"holds none of the {rows} that its header counts"
        raise InputError(path, path.name, reason, _AGAIN)
    return np.frombuffer(body[: whole * each], np.uint8).reshape(whole, *shape)


def _bytes(path: Path, accept_cut: bool) -> bytes:
    """Return the content of a file, unpacked; of a packed file that ends early, what it holds.

    A packed file that is damaged, holds more than `MOST_BYTES`, or ends early without `accept_cut`
    is refused.
    """
    if path.suffix != ".gz":
        return path.read_bytes()
    blocks, held = [], 0
    try:
        # It may consist of several members, as of `bgzip`.
        with gzip.open(path) as content:
            while block := content.read1(_BLOCK):
                blocks.append(block)
                held += len(block)
                if held > MOST_BYTES:
                    reason = f"cannot be unpacked: it holds more than {MOST_BYTES:,} bytes"
                    raise InputError(path, path.name, reason, _AGAIN)
    except EOFError:
        if not accept_cut:
            reason = "cannot be unpacked: it ends early"
            remedy = f"{_AGAIN}; or set cut_short: accept"
            raise InputError(path, path.name, reason, remedy) from None
    except (OSError, zlib.error) as error:
        raise InputError(path, path.name, f"cannot be unpacked: {error}", _AGAIN) from error
    return b"".join(blocks)
