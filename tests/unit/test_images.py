"""Pictures of classes: what is read of each format, what is refused, and what a model is given."""

from __future__ import annotations

import gzip
import os
import shutil
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data.base import Arrays
from escala.data.images import arrays, source
from escala.data.images.arrays import queries
from escala.data.images.pictures import count_pictures, read_picture

PREPARATION = {
    "provenance": "folders",
    "store": "uint8",
    "split": {"test_fraction": 0.25, "validation_fraction": 0.25},
}


def acquired(inputs: list[Path], folder: Path, **acquisition) -> dict[str, np.ndarray]:
    folder.mkdir(exist_ok=True)
    source.acquire({"colour": "as-is", "size": None} | acquisition, inputs, folder)
    found = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    return found | {"described": read_json(folder / "images.json")}


def picture(random: np.random.Generator, height: int, width: int, mode: str = "RGB") -> Image.Image:
    shape = (height, width, 3) if mode in ("RGB", "CMYK") else (height, width)
    return Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).convert(mode)


def png16(path: Path) -> None:
    """Write a PNG file of 6 × 5 pixels with 16 bits a colour, which Pillow cannot write."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", 5, 6, 16, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes(2 * 3 * 5)) * 6)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", rows), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


@pytest.fixture
def folders(tmp_path) -> Path:
    random = np.random.default_rng(3)
    for name in ("cat", "dog"):
        folder = tmp_path / "pets" / name
        folder.mkdir(parents=True)
        for number in range(8):
            ending = "png" if number % 2 else "JPG"
            picture(random, 6, 5).save(folder / f"{number}.{ending}", quality=100)
    return tmp_path / "pets"


def copied(folder: Path, *names: str) -> Path:
    """Copy the classes of a folder into folders of these names alongside it."""
    for name in names:
        shutil.copytree(folder, folder.parent / "all" / name)
    return folder.parent / "all"


@pytest.mark.parametrize(
    ("names", "sides"),
    [
        (("TRAIN", "Valid", "Test"), ["train", "validation", "test"]),
        (("seg_train", "seg_test"), ["train", "test"]),
        (("train", "dev", "testing-images"), ["train", "validation", "test"]),
    ],
)
def test_the_folder_of_a_side_may_have_other_usual_names(tmp_path, folders, names, sides):
    found = acquired([copied(folders, *names)], tmp_path / "source", type="folders")
    assert found["described"] == {"classes": ["cat", "dog"], "sides": sides}
    assert {side: len(found[f"{side}_labels"]) for side in sides} == dict.fromkeys(sides, 16)


@pytest.mark.parametrize(
    ("names", "extra", "reason"),
    [
        (("train", "test", "validation"), "all/val", "would not be read"),
        ((), "pets/cat/more", "would not be read"),
        (("train", "test"), "all/test/cow", "is not a class of the training side"),
        ((), "pets/cow", "holds no picture"),
    ],
)
def test_a_folder_that_is_not_read_is_refused_by_its_name(tmp_path, folders, names, extra, reason):
    path = copied(folders, *names) if names else folders
    (tmp_path / extra).mkdir()
    with pytest.raises(InputError, match=reason) as refused:
        acquired([path], tmp_path / "source", type="folders")
    assert Path(extra).name in f"{refused.value.where} {refused.value.value}"
    assert not (tmp_path / "source" / "images.json").exists()


@pytest.mark.parametrize("mode", ["LA", "P", "1"])
def test_pictures_of_every_common_mode_are_brought_to_one_form(tmp_path, folders, mode):
    picture(np.random.default_rng(4), 9, 12).convert(mode).save(folders / "cat" / "9.png")
    with pytest.raises(InputError, match=r"9.png.*set size, and colour: grey or rgb"):
        acquired([folders], tmp_path / "source", type="folders")
    (tmp_path / "source").rename(tmp_path / "failed")
    found = acquired([folders], tmp_path / "source", type="folders", colour="grey", size=[3, 4])
    assert found["train_images"].shape == (17, 3, 4, 1)
    first = Image.open(folders / "cat" / "1.png").convert("L")
    scaled = first.resize((4, 3), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(found["train_images"][1, ..., 0], np.asarray(scaled))


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("x.png", png16, "mode RGB, 16 bits a colour"),
        ("x.png", lambda p: picture(np.random.default_rng(0), 6, 5).save(p, "GIF"), "as PNG or"),
        ("x.txt", lambda p: p.write_text("notes"), "is not a PNG or JPEG file"),
        ("x.png", lambda p: (picture(np.random.default_rng(0), 60, 50).save(p),
                             p.write_bytes(p.read_bytes()[:900])), "cannot be read as PNG or JPEG"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_picture_is_refused_by_its_name(tmp_path, folders, name, make, message):
    make(folders / "dog" / name)
    with pytest.raises(InputError) as refused:
        acquired([folders], tmp_path / "source", type="folders", colour="rgb", size=[6, 5])
    assert f"dog/{name}" in str(refused.value) and message in str(refused.value)
    assert not (tmp_path / "source" / "images.json").exists()


def test_a_picture_is_turned_as_its_camera_was_held(tmp_path):
    """The values 1 to 8 of EXIF's tag Orientation (CIPA DC-008)."""
    stored = picture(np.random.default_rng(6), 6, 5)
    a = np.asarray(stored)
    turned, mirrored = np.rot90(a, 2), a.transpose(1, 0, 2)
    upright = [a, np.fliplr(a), turned, np.flipud(a), mirrored, np.rot90(a, -1),
               turned.transpose(1, 0, 2), np.rot90(a)]  # fmt: skip
    for orientation, expected in enumerate(upright, start=1):
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored.save(tmp_path / "x.png", exif=exif)
        found = read_picture(tmp_path / "x.png", "as-is", None)
        np.testing.assert_array_equal(found, expected)


def test_folders_that_hold_no_classes_are_refused_with_what_to_do(tmp_path, folders):
    for path, message in [
        (tmp_path / "none", "no such folder"),
        (folders / "cat", "holds pictures, and no folder for each class"),
        (tmp_path, "if the classes are in pets, name it"),
    ]:
        with pytest.raises(InputError, match=message):
            count_pictures(path)


@pytest.mark.parametrize("store", ["uint8", "float16"])
def test_pictures_are_divided_in_proportion_and_stored_as_told(tmp_path, folders, store):
    given = acquired([folders], tmp_path / "source", type="folders")
    assert given["described"] == {"classes": ["cat", "dog"], "sides": ["train"]}
    expected = np.asarray(Image.open(folders / "dog" / "1.png"))
    np.testing.assert_array_equal(given["train_images"][9], expected)
    np.testing.assert_array_equal(given["train_labels"], [0] * 8 + [1] * 8)
    output = tmp_path / "split"
    output.mkdir()
    told = PREPARATION | {"store": store}
    described = arrays.prepare("pets", told, 3, {"source": tmp_path / "source"}, output)
    assert described["rows"] == {"train": 8, "test": 4, "validation": 4}
    assert described["counts"]["cat"] == {"balanced": 4, "train": 4, "test": 2, "validation": 2}
    split, found = Arrays(output), set()
    for side in split.sides:
        (pictures,), labels = split.gather(side, slice(None))
        assert pictures.dtype == store
        if store == "float16":
            pictures = np.rint(pictures.astype(np.float64) * 255).astype(np.uint8)
        found |= {(a.tobytes(), label) for a, label in zip(pictures, labels, strict=True)}
    pictures, labels = given["train_images"], given["train_labels"]
    assert found == {(a.tobytes(), label) for a, label in zip(pictures, labels, strict=True)}


def test_queries_are_pictures_in_the_form_of_those_trained_on(tmp_path, folders):
    description = {"inputs": [{"name": "image", "shape": [4, 4, 1], "dtype": "float16"}]}
    found = list(queries(folders / "cat", description))
    assert [query.columns["file"] for query in found] == sorted(
        path.name for path in (folders / "cat").iterdir()
    )
    [image] = found[0].inputs
    assert image.shape == (1, 4, 4, 1) and image.dtype == np.float16 and image.max() <= 1
    [one] = queries(folders / "cat" / "1.png", description)
    np.testing.assert_array_equal(one.inputs[0], found[1].inputs[0])
    with pytest.raises(InputError, match=r"none\.png.*no such file"):
        list(queries(tmp_path / "none.png", description))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no picture"):
        list(queries(tmp_path / "empty", description))


NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
IDX = {"type": "idx", "cut_short": "refuse"}
CIFAR = {"type": "cifar", "cut_short": "accept"}
IMAGES, LABELS = source.FILES["train"]


def refusal(path: Path, folder: Path, **acquisition) -> str:
    """Return the message of what is refused, before anything is complete."""
    with pytest.raises(InputError) as refused:
        acquired([path], folder, **acquisition)
    assert not (folder / "images.json").exists()
    return str(refused.value)


@pytest.fixture
def pictures() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        side: random.integers(0, 256, (count, 5, 4), dtype=np.uint8)
        for side, count in (("train", 12), ("test", 6))
    }


@pytest.fixture
def mnist(tmp_path, pictures) -> Path:
    """Return a folder of pictures, uint8 (n, height, width), with labels 0, 1, 2, 0, …."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for side, (image_file, label_file) in source.FILES.items():
        labels = (np.arange(len(pictures[side])) % 3).astype(np.uint8)
        for name, array in ((image_file, pictures[side]), (label_file, labels)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / name).write_bytes(header + array.tobytes())
    return folder


def pack(folder: Path, compress: Callable[[bytes], bytes] = gzip.compress) -> None:
    for path in list(folder.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(compress(path.read_bytes()))
        path.unlink()


@pytest.mark.parametrize(
    "compress",
    [
        None,
        # `bgzip`, and `cat` of packed files, write files of several members.
        lambda content: gzip.compress(content[:12]) + gzip.compress(content[12:]),
    ],
    ids=["plain", "members"],
)
def test_idx_files_are_read_whole(tmp_path, mnist, pictures, compress):
    if compress:
        pack(mnist, compress)
        for path in list(mnist.iterdir()):
            path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    found = acquired([mnist], tmp_path / "source", **IDX)
    assert found["described"] == {"classes": ["0", "1", "2"], "sides": ["train", "test"]}
    for side in ("train", "test"):
        np.testing.assert_array_equal(found[f"{side}_images"], pictures[side][..., None])
        np.testing.assert_array_equal(found[f"{side}_labels"], np.arange(len(pictures[side])) % 3)
    # Its sides stay, and only validation is taken from training.
    preparation = {"provenance": "idx", "store": "uint8"}
    preparation |= {"split": {"test_fraction": 0.25, "validation_fraction": 0.25}}
    inputs = {"source": tmp_path / "source"}
    described = arrays.prepare("m", preparation, 3, inputs, tmp_path / "split")
    assert described["rows"] == {"train": 9, "validation": 3, "test": 6}


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (IMAGES, None, "no such file, nor with .gz"),
        (IMAGES, lambda b: b[:-30], "'10 of 12': is cut short"),
        (LABELS, lambda b: b[:4] + b"\0\0\0\x0b" + b[8:-1], "do not match the 12 pictures"),
        (LABELS, lambda b: b[:-1] + b"\xc8", "label 200': would make 201 classes, of which 4"),
    ],
)
def test_an_idx_file_that_is_not_whole_is_refused(tmp_path, mnist, file, change, message):
    content = (mnist / file).read_bytes()
    (mnist / file).unlink()
    if change:
        (mnist / file).write_bytes(change(content))
    assert message in refusal(mnist, tmp_path / "source", **IDX)


def test_a_cut_idx_file_gives_its_whole_pictures_when_told(tmp_path, mnist, pictures):
    path, whole = mnist / IMAGES, (mnist / IMAGES).read_bytes()
    path.write_bytes(whole[: 16 + 20 * 7 + 3])
    found = acquired([mnist], tmp_path / "plain", **IDX | {"cut_short": "accept"})
    path.unlink()
    # Stored without compression, so half of the file holds some of the pictures.
    packed = gzip.compress(whole, compresslevel=0)[: 10 + 5 + 16 + 20 * 7 + 3]
    path.with_name(f"{IMAGES}.gz").write_bytes(packed)
    assert "cannot be unpacked: it ends early" in refusal(mnist, tmp_path / "refused", **IDX)
    other = acquired([mnist], tmp_path / "packed", **IDX | {"cut_short": "accept"})
    for each in (found, other):
        np.testing.assert_array_equal(each["train_images"], pictures["train"][:7, ..., None])
        assert len(each["train_labels"]) == 7 and len(each["test_labels"]) == 6
    path.with_name(f"{IMAGES}.gz").write_bytes(gzip.compress(whole[:16]))
    said = refusal(mnist, tmp_path / "none", **IDX | {"cut_short": "accept"})
    assert "side train" in said and "holds no picture" in said


def test_packed_idx_files_that_are_damaged_or_would_fill_the_memory_are_refused(
    tmp_path, mnist, monkeypatch
):
    pack(mnist)
    accepting = IDX | {"cut_short": "accept"}
    with monkeypatch.context() as patch:
        patch.setattr(source, "MOST_BYTES", 100)
        said = refusal(mnist, tmp_path / "source", **accepting)
        assert "cannot be unpacked: it holds more than 100 bytes" in said
    path = mnist / f"{IMAGES}.gz"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    path.write_bytes(damaged)
    said = refusal(mnist, tmp_path / "source", **accepting)
    assert "cannot be unpacked" in said and "or set cut_short" not in said


@pytest.fixture
def records(tmp_path) -> dict[str, np.ndarray]:
    """Write files of records, uint8 (n, 3073), into the folder `cifar`, and return them."""
    random = np.random.default_rng(2)
    (tmp_path / "cifar").mkdir()
    (tmp_path / "cifar" / source.NAMES).write_text("\n".join(NAMES) + "\n\n")
    made = {}
    for name, rows in (("data_batch_2.bin", 2), ("data_batch_10.bin", 3), ("test_batch.bin", 2)):
        made[name] = random.integers(0, 256, (rows, 3073), dtype=np.uint8)
        made[name][:, 0] = np.arange(rows) % 10
        (tmp_path / "cifar" / name).write_bytes(made[name].tobytes())
    return made


def archived(folder: Path, **options) -> Path:
    path = folder.with_name("cifar.tar.gz")
    with tarfile.open(path, "w:gz", **options) as archive:
        archive.add(folder, "cifar-10-batches-bin")
    return path


@pytest.mark.parametrize("form", ["files", "packed files", "archive"])
def test_cifar_files_are_read_in_their_order(tmp_path, records, form):
    path = tmp_path / "cifar"
    if form == "packed files":
        pack(path)
    if form == "archive":
        path = archived(path)
    found = acquired([path], tmp_path / "source", **CIFAR)
    assert found["described"] == {"classes": NAMES, "sides": ["train", "test"]}
    train = np.concatenate([records["data_batch_2.bin"], records["data_batch_10.bin"]])
    np.testing.assert_array_equal(found["train_labels"], train[:, 0])
    # Of row 3, column 7: red, green and blue stand 1024 apart.
    where = 1 + 3 * 32 + 7 + 1024 * np.arange(3)
    np.testing.assert_array_equal(found["train_images"][:, 3, 7], train[:, where])
    assert found["test_images"].shape == (2, 32, 32, 3)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"test_batch.bin": None}, {}, "'test_batch.bin': no such file in it"),
        ({"data_batch_2.bin": None, "data_batch_10.bin": None}, {}, "'data_batch_1.bin'"),
        ({}, {"cut_short": "refuse"}, "'2 of 10000': is cut short"),
        ({"test_batch.bin": b"\x0b" * 3073}, {}, "'picture 1': has the label 11 of 10"),
        (
            {source.NAMES: "\n".join([NAMES[1], *NAMES[1:]]).encode()},
            {},
            f"'{NAMES[1]}': is the name of two classes",
        ),
    ],
)
def test_cifar_files_that_are_not_whole_are_refused(tmp_path, records, change, options, message):
    for name, content in change.items():
        (tmp_path / "cifar" / name).unlink()
        if content:
            (tmp_path / "cifar" / name).write_bytes(content)
    said = refusal(tmp_path / "cifar", tmp_path / "source", **CIFAR | options)
    assert message in said and ("cs.toronto.edu/~kriz" in said or source.NAMES in change)


def test_an_archive_that_is_damaged_or_cut_short_is_refused(tmp_path, records):
    path = archived(tmp_path / "cifar", compresslevel=0)
    content = path.read_bytes()
    # A wrong bit of a pixel: only the checksum of the archive can tell.
    damaged = bytearray(content)
    damaged[damaged.index(records["data_batch_10.bin"][1][1500:1564].tobytes())] ^= 4
    path.write_bytes(damaged)
    assert "cannot be unpacked: CRC check failed" in refusal(path, tmp_path / "b", **CIFAR)
    path.write_bytes(content[:5000])
    assert "cannot be unpacked" in refusal(path, tmp_path / "c", **CIFAR)
    # The versions for Python and Matlab are of another form.
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "data_batch_1").write_bytes(b"\x80\2}q\1")
    said = refusal(tmp_path / "python", tmp_path / "d", **CIFAR)
    assert "no such file in it" in said and "versions for Python and Matlab are not read" in said


@pytest.mark.real_pictures
def test_real_samples_of_mnist_and_cifar_are_read(tmp_path):
    folder = Path(os.environ["ESCALA_PICTURES"])
    for path, form, shape, rows in [
        (folder / "mnist", IDX, (28, 28, 1), (6000, 2000)),
        (folder / "cifar-10", CIFAR, (32, 32, 3), (2700, 800)),
    ]:
        found = acquired([path], tmp_path / path.name, **form)
        for side, count in zip(("train", "test"), rows, strict=True):
            assert found[f"{side}_images"].shape == (count, *shape)
            assert np.bincount(found[f"{side}_labels"], minlength=10).min() > count / 20
