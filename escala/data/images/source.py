"""Make pictures of one size from a source: `SIDE_images.npy`, `SIDE_labels.npy`, `images.json`.

Published sets are MNIST and CIFAR-10. An idx file, the format of MNIST, consists of a header of
big-endian numbers, and bytes. A file of CIFAR-10 consists of records. A record is a label and a
picture, colour by colour.
"""

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.files import write_json
from escala.data.base import require_class_names
from escala.data.images import OUTLINE_SIZE, OUTLINES
from escala.data.images.pictures import classes_of, convert, files_of, read_picture, sides_of
from escala.data.splits import ArrayWriter, open_array

#: Number of harmonics. They form the outline of a class, and the variation of each picture.
HARMONICS = 7
#: Points of an outline, and the seed of the classes' outlines, which are equal in every dataset.
POINTS, SEED = 160, 2021
#: Standard deviation of harmonics between classes, and within a class at difficulty 1, as fractions
#: of the radius.
BETWEEN, WITHIN = 0.10, 0.14
#: Pictures that are yielded at a time.
ROWS = 512
#: Higher harmonics are smaller, so that outlines are smooth.
_ORDERS = np.sqrt(np.arange(1, HARMONICS + 1))
_ANGLES = np.linspace(0, 2 * np.pi, POINTS, endpoint=False)

#: Side, pictures and labels: uint8 (pictures, height, width, colours) and integers (pictures,).
Pictures = Iterator[tuple[str, np.ndarray, np.ndarray]]


def acquire(acquisition: Mapping[str, Any], inputs: Sequence[Path], folder: Path) -> None:
    """Read the pictures of the user's folder, archive or files into `folder`, some at a time.

    `folder` receives for each side `SIDE_images.npy`, uint8 (pictures, height, width, colours), and
    `SIDE_labels.npy`, int64 (pictures,). It also receives `images.json` with the names of the
    `classes` and the `sides`. If the source has no sides, all pictures are the side `train`.
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
    """Return the names of the classes (None if classes are numbers) and the pictures."""
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
    """Return the names of the classes, and the pictures, which all have one size and colour."""
    sides = sides_of(folder)
    classes = classes_of(sides["train"])
    for inner in sides.values():
        others = sorted(set(classes_of(inner)) - set(classes))
        if others:
            reason, remedy = (
                "is not a class of the training side",
                "add it to the training side, or remove it",
            )
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

    Pictures are uint8 (pictures, height, width, 1), 0 outside and 255 inside. `difficulty` is from
    0 to 1. With 0, outlines of a class differ only in size, angle, position and mirroring.
    """
    random = np.random.default_rng(seed)
    labels = np.tile(np.arange(OUTLINES), per_class)
    forms = np.random.default_rng(SEED).normal(0, BETWEEN, (OUTLINES, 2, HARMONICS)) / _ORDERS
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


#: Stems of MNIST's files of images and labels, by side.
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
#: The address of MNIST, and the mirror from which torchvision.datasets.MNIST downloads.
_MNIST = (
    "https://yann.lecun.com/exdb/mnist/ or its mirror "
    "https://ossci-datasets.s3.amazonaws.com/mnist/"
)
_AGAIN = f"get it again, from {_MNIST}"
#: The most bytes of an unpacked file: 40 times MNIST's pictures.
MOST_BYTES = 2**31
#: Bytes that one call unpacks.
_BLOCK = 2**20
#: The idx code of unsigned bytes, the only type that is read.
_BYTES = 8

#: Bytes of a record of CIFAR-10, and records of a whole file.
RECORD, RECORDS = 1 + 32 * 32 * 3, 10000
NAMES, _TEST = "batches.meta.txt", "test_batch.bin"
_BATCH = re.compile(r"data_batch_([1-9]\d*)\.bin")
_CIFAR = (
    "get cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html, and name it or "
    "the folder it unpacks to; CIFAR-100 and the versions for Python and Matlab are not read"
)


def mnist(folder: Path, accept_cut: bool) -> Pictures:
    """Yield the sides `train` and `test` of the idx files in a folder.

    A file is refused if it is missing, is not whole, or is not an idx file of bytes.
    """
    for side, stems in FILES.items():
        paths = [_file(folder, stem) for stem in stems]
        images, labels = _idx(paths[0], 3, accept_cut), _idx(paths[1], 1, accept_cut)
        if len(images) != len(labels) and not accept_cut:
            reason = f"do not match the {len(images)} pictures in {paths[0].name}"
            remedy = f"get both files again, from {_MNIST}"
            raise InputError(paths[1], f"{len(labels)} labels", reason, remedy)
        count = min(len(images), len(labels))
        yield side, images[:count, ..., None], labels[:count]


def _file(folder: Path, stem: str) -> Path:
    """Return the file of a stem, plain or packed.

    Some programs unpack `train-images-idx3-ubyte` as `train-images.idx3-ubyte`.
    """
    for ending in ("", ".gz"):
        for name in (stem, stem.replace("-idx", ".idx")):
            path = folder / f"{name}{ending}"
            if path.is_file():
                return path
    remedy = f"get it from {_MNIST} and name its folder; rename files of other sets, such as EMNIST"
    raise InputError(folder, stem, "no such file, nor with .gz", remedy)


def _idx(path: Path, dimensions: int, accept_cut: bool) -> np.ndarray:
    """Return the array in an idx file, uint8 with `dimensions` axes."""
    content = _unpack(path, accept_cut)
    header = 4 * (1 + dimensions)
    if len(content) < header or content[:4] != bytes([0, 0, _BYTES, dimensions]):
        value = f"begins with {content[:4].hex(' ') or 'nothing'}"
        form = f"{dimensions} dimensions (00 00 08 {dimensions:02x})"
        raise InputError(path, value, f"is not an idx file of bytes in {form}", _AGAIN)
    rows, *shape = np.frombuffer(content[4:header], ">u4").tolist()
    body = content[header:]
    row_bytes = int(np.prod(shape, dtype=np.int64)) if shape else 1
    if not row_bytes or len(body) > rows * row_bytes:
        form = " × ".join(map(str, shape)) or 1
        reason = f"do not fit its header: {rows} of {form} bytes"
        raise InputError(path, f"{len(body)} bytes", reason, _AGAIN)
    complete = len(body) // row_bytes
    if complete < rows and not accept_cut:
        reason = "is cut short: its header counts more pictures than the file holds"
        remedy = f"{_AGAIN}; or set cut_short: accept"
        raise InputError(path, f"{complete} of {rows}", reason, remedy)
    return np.frombuffer(body[: complete * row_bytes], np.uint8).reshape(complete, *shape)


def _unpack(path: Path, accept_cut: bool) -> bytes:
    """Return the content of a file, unpacked; of a packed file that ends early, the readable part.

    A packed file that is damaged, holds more than `MOST_BYTES`, or ends early without `accept_cut`
    is refused.
    """
    if path.suffix != ".gz":
        return path.read_bytes()
    blocks, held = [], 0
    try:
        # A file of `bgzip` consists of several members.
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


def cifar10(path: Path, accept_cut: bool) -> tuple[list[str], Pictures]:
    """Return the names of the classes, and an iterator over the files in a folder or an archive.

    A file that is missing or not whole, and a label without a class, are refused.
    """
    files = _files(path)
    batches = sorted(filter(_BATCH.fullmatch, files), key=lambda name: int(_BATCH.match(name)[1]))
    needed = {NAMES: NAMES in files, "data_batch_1.bin": batches, _TEST: _TEST in files}
    for name, present in needed.items():
        if not present:
            raise InputError(path, name, "no such file in it", _CIFAR)
    classes = files[NAMES].decode(errors="replace").split()
    sides = (
        (side, *_records(path / name, files[name], len(classes), accept_cut))
        for side, names in (("train", batches), ("test", [_TEST]))
        for name in names
    )
    return classes, sides


def _files(path: Path) -> dict[str, bytes]:
    """Return the content of CIFAR-10's files in a folder or an archive, by name."""

    def is_used(name: str) -> bool:
        return name in (NAMES, _TEST) or bool(_BATCH.fullmatch(name))

    # One byte more than a whole file, to notice a file that is too long.
    most = RECORD * RECORDS + 1
    file = path
    try:
        if path.is_dir():
            contents = {}
            for file in sorted(path.iterdir()):
                if is_used(name := file.name.removesuffix(".gz")):
                    with gzip.open(file) if file.suffix == ".gz" else open(file, "rb") as content:
                        contents[name] = content.read(most)
            return contents
        with gzip.open(path) as content:
            try:
                content.peek(1)
            except gzip.BadGzipFile:
                pass
            else:  # `tarfile` stops before the checksum at the end, so read it here.
                while content.read(_BLOCK):
                    pass
        with tarfile.open(path) as archive:
            members = {PurePosixPath(entry.name).name: entry for entry in archive if entry.isfile()}
            # Files are read into memory, so no path in the archive is written to.
            return {
                name: archive.extractfile(entry).read(most)
                for name, entry in members.items()
                if is_used(name)
            }
    except FileNotFoundError:
        raise InputError(path, path.name, "no such folder or archive", _CIFAR) from None
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise InputError(file, file.name, f"cannot be unpacked: {error}", _CIFAR) from error


def _records(
    path: Path, content: bytes, classes: int, accept_cut: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pictures and the labels of a file of records."""
    complete = len(content) // RECORD
    if len(content) > RECORDS * RECORD or not complete:
        reason = f"is not 1 to {RECORDS} records of {RECORD}"
        raise InputError(path, f"{len(content)} bytes", reason, _CIFAR)
    if complete < RECORDS and not accept_cut:
        reason = "is cut short: the standard file has more pictures"
        remedy = f"{_CIFAR}; or set cut_short: accept"
        raise InputError(path, f"{complete} of {RECORDS}", reason, remedy)
    records = np.frombuffer(content, np.uint8, complete * RECORD).reshape(complete, RECORD)
    labels = records[:, 0]
    if labels.max() >= classes:
        row = int(labels.argmax())
        reason = f"has the label {labels[row]} of {classes}"
        raise InputError(path, f"picture {row + 1}", reason, _CIFAR)
    return records[:, 1:].reshape(complete, 3, 32, 32).transpose(0, 2, 3, 1), labels
