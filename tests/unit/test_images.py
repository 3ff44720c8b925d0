"""Pictures of classes: what is read of each format, what is refused, and what a model is given."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data.base import Arrays
from escala.data.images import arrays, cifar, idx, settings, source
from escala.data.images.pictures import listed, read_picture
from escala.data.images.queries import queries
from escala.data.size import Size

PREPARATION = {
    "provenance": "folders",
    "store": "uint8",
    "split": {"test_fraction": 0.25, "validation_fraction": 0.25},
}
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def acquired(tmp_path: Path, inputs: list[Path], **acquisition) -> dict[str, np.ndarray]:
    folder = tmp_path / "source"
    folder.mkdir()
    form = {"colour": "as-is", "size": None} | acquisition
    source.acquire(form, inputs, folder)
    found = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    return found | {"described": read_json(folder / "images.json")}


def write_idx(folder: Path, pictures: dict[str, np.ndarray], packed: bool = False) -> None:
    """Write pictures, uint8 (n, height, width), with labels 0, 1, 2, 0, … of both sides."""
    folder.mkdir(exist_ok=True)
    for side, (of_images, of_labels) in idx.FILES.items():
        labels = (np.arange(len(pictures[side])) % 3).astype(np.uint8)
        for name, array in ((of_images, pictures[side]), (of_labels, labels)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            content = header + array.tobytes()
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(content) if packed else content)


@pytest.fixture
def pictures() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        "train": random.integers(0, 256, (12, 5, 4), dtype=np.uint8),
        "test": random.integers(0, 256, (6, 5, 4), dtype=np.uint8),
    }


IDX = {"type": "idx", "cut_short": "refuse", "official": False}


@pytest.mark.parametrize("dotted", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_whole(tmp_path, pictures, packed, dotted):
    write_idx(tmp_path / "mnist", pictures, packed)
    for path in list((tmp_path / "mnist").iterdir()) if dotted else ():
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    found = acquired(tmp_path, [tmp_path / "mnist"], **IDX)
    assert found["described"] == {"classes": ["0", "1", "2"], "sides": ["train", "test"]}
    for side in ("train", "test"):
        np.testing.assert_array_equal(found[f"{side}_images"], pictures[side][..., None])
        np.testing.assert_array_equal(found[f"{side}_labels"], np.arange(len(pictures[side])) % 3)


def test_a_label_that_would_make_classes_without_pictures_is_refused(tmp_path, pictures):
    folder = tmp_path / "mnist"
    write_idx(folder, pictures)
    path = folder / idx.FILES["train"][1]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\xc8")
    with pytest.raises(InputError, match="label 200': would make 201 classes, of which 4 have"):
        acquired(tmp_path, [folder], **IDX)
    path.write_bytes(content)
    # The letters of EMNIST have the numbers from 1, so that one class has no picture.
    for _, name in idx.FILES.values():
        header, labels = np.split(np.fromfile(folder / name, np.uint8), [8])
        (folder / name).write_bytes(header.tobytes() + (labels + np.uint8(1)).tobytes())
    again = tmp_path / "again"
    again.mkdir()
    found = acquired(again, [folder], **IDX)
    assert found["described"]["classes"] == ["0", "1", "2", "3"]


IMAGES, LABELS = idx.FILES["train"]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (IMAGES, None, "no such file, nor with .gz"),
        (IMAGES, lambda b: b"", "begins with nothing"),
        (IMAGES, lambda b: b"\0\0\x0d\x03" + b[4:], "begins with 00 00 0d 03"),
        (IMAGES, lambda b: b"\x89PNG" + b[4:], "is no idx file of bytes in 3 dimensions"),
        (IMAGES, lambda b: b[:-30], "'10 of 12': is cut short"),
        (IMAGES, lambda b: b + b"\0", "do not fit its header"),
        (IMAGES, lambda b: b[:8] + b"\0\0\0\0" + b[12:], "do not fit its header"),
        (IMAGES, lambda b: b[:4] + b"\xff\xff\xff\xff" + b[8:], "of 4294967295': is cut short"),
        (LABELS, lambda b: b[:4] + b"\0\0\0\x0b" + b[8:-1], "are not those of the 12 pictures"),
        (LABELS, lambda b: b[:-1], "'11 of 12': is cut short"),
        (IMAGES, lambda b: b[:16], "'0 of 12': is cut short"),
        (IMAGES, lambda b: b[:16], "holds none of the 12 that its header counts"),
    ],
)
def test_an_idx_file_that_is_not_whole_is_refused(tmp_path, pictures, file, change, message):
    folder = tmp_path / "mnist"
    write_idx(folder, pictures)
    content = (folder / file).read_bytes()
    (folder / file).unlink()
    if change:
        (folder / file).write_bytes(change(content))
    accept = {"cut_short": "accept"} if "holds none" in message else {}
    with pytest.raises(InputError) as refused:
        acquired(tmp_path, [folder], **IDX | accept)
    assert message in str(refused.value)
    assert not (tmp_path / "source" / "images.json").exists()


@pytest.mark.parametrize("packed", [False, True])
def test_an_idx_file_that_is_cut_short_gives_its_whole_pictures_when_told(
    tmp_path, pictures, packed
):
    folder = tmp_path / "mnist"
    write_idx(folder, pictures)
    path = folder / IMAGES
    if packed:
        # Random pictures do not compress, so half of the file holds some of them.
        content = gzip.compress(path.read_bytes(), compresslevel=0)
        path.unlink()
        path = path.with_name(f"{IMAGES}.gz")
        path.write_bytes(content[: 10 + 5 + 16 + 20 * 7 + 3])
        with pytest.raises(InputError, match="cannot be unpacked: it ends early"):
            acquired(tmp_path, [folder], **IDX)
        (tmp_path / "source").rmdir() if not any((tmp_path / "source").iterdir()) else None
    else:
        path.write_bytes(path.read_bytes()[: 16 + 20 * 7 + 3])
    found = acquired(tmp_path, [folder], **IDX | {"cut_short": "accept"})
    np.testing.assert_array_equal(found["train_images"], pictures["train"][:7, ..., None])
    assert len(found["train_labels"]) == 7 and len(found["test_labels"]) == 6


def test_a_packed_idx_file_that_would_fill_the_memory_is_refused(tmp_path, pictures, monkeypatch):
    write_idx(tmp_path / "mnist", pictures, packed=True)
    monkeypatch.setattr(idx, "MOST_BYTES", 100)
    with pytest.raises(InputError, match="cannot be unpacked: it holds more than 100 bytes"):
        acquired(tmp_path, [tmp_path / "mnist"], **IDX | {"cut_short": "accept"})


def test_the_names_of_emnist_are_refused_with_those_to_give(tmp_path, pictures):
    folder = tmp_path / "emnist"
    write_idx(folder, pictures, packed=True)
    for path in list(folder.iterdir()):
        path.rename(folder / f"emnist-letters-{path.name.replace('t10k', 'test')}")
    with pytest.raises(InputError, match="like those of EMNIST") as refused:
        acquired(tmp_path, [folder], **IDX)
    assert "t10k-labels-idx1-ubyte" in refused.value.remedy


def test_the_packed_files_are_read_where_digests_are_required(tmp_path, pictures, monkeypatch):
    """An unpacked file of other content beside them is not looked at."""
    folder = tmp_path / "mnist"
    write_idx(folder, pictures, packed=True)
    stems = [stem for side in idx.FILES.values() for stem in side]
    for stem in stems:
        digest = hashlib.md5((folder / f"{stem}.gz").read_bytes()).hexdigest()
        monkeypatch.setitem(idx.DIGESTS, stem, digest)
        (folder / stem).write_bytes(b"unpacked")
    found = acquired(tmp_path, [folder], **IDX | {"official": True})
    np.testing.assert_array_equal(found["train_images"], pictures["train"][..., None])
    (folder / f"{stems[0]}.gz").unlink()
    with pytest.raises(InputError, match=rf"{stems[0]}\.gz.*official: true needs it"):
        list(idx.sides(folder, False, True))


CIFAR = {"type": "cifar", "cut_short": "accept", "official": False}


def write_cifar(folder: Path, records: dict[str, np.ndarray]) -> None:
    """Write files of records, uint8 (n, 3073)."""
    folder.mkdir()
    (folder / cifar.NAMES).write_text("\n".join(NAMES) + "\n\n")
    for name, content in records.items():
        (folder / name).write_bytes(content.tobytes())


@pytest.fixture
def records() -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    made = {
        name: random.integers(0, 256, (rows, 3073), dtype=np.uint8)
        for name, rows in (("data_batch_2.bin", 2), ("data_batch_10.bin", 3), ("test_batch.bin", 2))
    }
    for content in made.values():
        content[:, 0] = np.arange(len(content)) % 10
    return made


@pytest.mark.parametrize("form", ["files", "packed files", "archive"])
def test_cifar_files_are_read_in_their_order(tmp_path, records, form):
    path = tmp_path / "cifar"
    write_cifar(path, records)
    if form == "packed files":
        for name in records:
            (path / f"{name}.gz").write_bytes(gzip.compress((path / name).read_bytes()))
            (path / name).unlink()
    if form == "archive":
        with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
            archive.add(path, "cifar-10-batches-bin")
        path = tmp_path / "cifar.tar.gz"
    found = acquired(tmp_path, [path], **CIFAR)
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
        ({"batches.meta.txt": None}, {}, "'batches.meta.txt': no such file in it"),
        ({"data_batch_2.bin": None, "data_batch_10.bin": None}, {}, "'data_batch_1.bin'"),
        ({}, {"cut_short": "refuse"}, "'2 of 10000': is cut short"),
        ({"test_batch.bin": b"\0" * 100}, {}, "is not 1 to 10000 records of 3073"),
        ({"test_batch.bin": b"\0" * 30_730_001}, {}, "is not 1 to 10000 records of 3073"),
        ({"test_batch.bin": b"\x0b" * 3073}, {}, "'picture 1': has the label 11 of 10"),
        ({}, {"official": True}, "needs the archive"),
    ],
)
def test_cifar_files_that_are_not_whole_are_refused(tmp_path, records, change, options, message):
    folder = tmp_path / "cifar"
    write_cifar(folder, records)
    for name, content in change.items():
        (folder / name).unlink()
        if content:
            (folder / name).write_bytes(content)
    with pytest.raises(InputError) as refused:
        acquired(tmp_path, [folder], **CIFAR | options)
    assert message in str(refused.value) and cifar.OFFICIAL in str(refused.value)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["data_batch_1", "batches.meta"], "in the pickled form for Python, which is not read"),
        (["data_batch_1.mat", "batches.meta.mat"], "in the form for Matlab"),
        (["train.bin", "test.bin", "fine_label_names.txt"], "is CIFAR-100"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_another_form_of_cifar_is_named(tmp_path, names, message, packed):
    folder = tmp_path / "cifar"
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"\x80\2}q\1")
    if packed:
        with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
            archive.add(folder, "cifar-10-batches")
        folder = tmp_path / "cifar.tar.gz"
    with pytest.raises(InputError, match=message) as refused:
        acquired(tmp_path, [folder], **CIFAR)
    assert "cifar-10-binary.tar.gz" in refused.value.remedy


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["=2+5", *NAMES[1:]], "'=2+5': is no name of a class"),
        (["x" * 65, *NAMES[1:]], "is no name of a class: too long"),
        ([NAMES[1], *NAMES[1:]], f"'{NAMES[1]}': is the name of two classes"),
    ],
)
def test_names_that_no_table_could_hold_are_refused(tmp_path, records, names, message):
    write_cifar(tmp_path / "cifar", records)
    (tmp_path / "cifar" / cifar.NAMES).write_text("\n".join(names))
    with pytest.raises(InputError, match=re.escape(message)):
        acquired(tmp_path, [tmp_path / "cifar"], **CIFAR)
    assert not list((tmp_path / "source").iterdir())


def test_an_archive_with_one_wrong_bit_is_refused(tmp_path, records):
    """The bit is of a pixel, so only the checksum of the archive can tell that it is wrong."""
    write_cifar(tmp_path / "cifar", records)
    path = tmp_path / "cifar.tar.gz"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=0) as archive:
        archive.add(tmp_path / "cifar", "cifar")
    path.write_bytes(content.getvalue())
    acquired(tmp_path, [path], **CIFAR)
    (tmp_path / "source").rename(tmp_path / "right")
    damaged = bytearray(content.getvalue())
    picture = records["data_batch_10.bin"][1]
    pixels = picture[int(0.5 * len(picture)) :][:64].tobytes()
    damaged[damaged.index(pixels)] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="cannot be unpacked: CRC check failed"):
        acquired(tmp_path, [path], **CIFAR)
    assert not list((tmp_path / "source").iterdir())


def test_an_archive_that_is_cut_short_or_another_is_refused(tmp_path, records):
    path = tmp_path / "cifar.tar.gz"
    content = io.BytesIO()
    write_cifar(tmp_path / "cifar", records)
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        archive.add(tmp_path / "cifar")
    path.write_bytes(content.getvalue()[:5000])
    with pytest.raises(InputError, match="cannot be unpacked"):
        acquired(tmp_path, [path], **CIFAR)
    with pytest.raises(InputError, match=f"is not {cifar.ARCHIVE}"):
        source.acquire(
            CIFAR | {"official": True, "colour": "as-is", "size": None}, [path], tmp_path / "source"
        )
    with pytest.raises(InputError, match="no such folder or archive"):
        list(cifar.sides(tmp_path / "none", True, False))


def picture(random: np.random.Generator, height: int, width: int, mode: str = "RGB") -> Image.Image:
    shape = (height, width, 3) if mode in ("RGB", "CMYK") else (height, width)
    return Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).convert(mode)


def png16(kind: int, colours: int) -> bytes:
    """Return a PNG file of 6 × 5 pixels with 16 bits a colour, which Pillow cannot write."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    rows = (b"\0" + bytes(2 * colours * 5)) * 6
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", 5, 6, 16, kind, 0, 0, 0)),
            chunk(b"IDAT", zlib.compress(rows)),
            chunk(b"IEND", b""),
        ]
    )


def with_text(path: Path, letters: int) -> None:
    """Write a PNG file with a packed text of so many letters."""
    text = PngImagePlugin.PngInfo()
    text.add_text("notes", "x" * letters, zip=True)
    picture(np.random.default_rng(0), 6, 5).save(path, pnginfo=text)


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


def test_folders_of_png_and_jpeg_are_classes(tmp_path, folders):
    found = acquired(tmp_path, [folders], type="folders")
    assert found["described"] == {"classes": ["cat", "dog"], "sides": ["train"]}
    assert found["train_images"].shape == (16, 6, 5, 3)
    np.testing.assert_array_equal(found["train_labels"], [0] * 8 + [1] * 8)
    expected = np.asarray(Image.open(folders / "dog" / "1.png"))
    np.testing.assert_array_equal(found["train_images"][9], expected)


def copied(folder: Path, *names: str) -> Path:
    """Copy the classes of a folder into folders of these names beside it."""
    for name in names:
        shutil.copytree(folder, folder.parent / "all" / name)
    return folder.parent / "all"


@pytest.mark.parametrize(
    ("names", "sides"),
    [
        (("train", "val", "test"), ["train", "validation", "test"]),
        (("train", "validation", "test"), ["train", "validation", "test"]),
        (("train", "val"), ["train", "validation"]),
        (("Training", "Testing"), ["train", "test"]),
        (("TRAIN", "Valid", "Test"), ["train", "validation", "test"]),
        (("training_set", "test_set"), ["train", "test"]),
        (("seg_train", "seg_test"), ["train", "test"]),
        (("train", "dev", "testing-images"), ["train", "validation", "test"]),
    ],
)
def test_the_folder_of_a_side_may_have_other_usual_names(tmp_path, folders, names, sides):
    found = acquired(tmp_path, [copied(folders, *names)], type="folders")
    assert found["described"] == {"classes": ["cat", "dog"], "sides": sides}
    assert {side: len(found[f"{side}_labels"]) for side in sides} == dict.fromkeys(sides, 16)


@pytest.mark.parametrize(
    ("names", "extra"),
    [
        (("train", "test", "val"), "all/extra"),
        (("train", "test", "validation"), "all/val"),
        (("seg_train", "seg_test"), "all/seg_pred"),
        (("train", "val"), "all/val/cat/more"),
        ((), "pets/cat/more"),
    ],
)
def test_a_folder_that_is_not_read_is_refused_by_its_name(tmp_path, folders, names, extra):
    path = copied(folders, *names) if names else folders
    (tmp_path / extra).mkdir()
    with pytest.raises(InputError, match="would not be read") as refused:
        acquired(tmp_path, [path], type="folders")
    assert refused.value.where == tmp_path / extra
    assert not (tmp_path / "source" / "images.json").exists()


def test_a_class_that_is_not_trained_on_is_refused(tmp_path, folders):
    (copied(folders, "train", "test") / "test" / "cow").mkdir()
    with pytest.raises(InputError, match=r"cow.*is no class of the training side"):
        acquired(tmp_path, [tmp_path / "all"], type="folders")


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1"])
def test_pictures_of_every_common_mode_are_brought_to_one_form(tmp_path, folders, mode):
    picture(np.random.default_rng(4), 9, 12).convert(mode).save(folders / "cat" / "9.png")
    with pytest.raises(InputError, match=r"9.png.*set size, and colour: grey or rgb"):
        acquired(tmp_path, [folders], type="folders")
    (tmp_path / "source").rename(tmp_path / "failed")
    found = acquired(tmp_path, [folders], type="folders", colour="grey", size=[3, 4])
    assert found["train_images"].shape == (17, 3, 4, 1)
    first = Image.open(folders / "cat" / "1.png").convert("L")
    scaled = first.resize((4, 3), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(found["train_images"][1, ..., 0], np.asarray(scaled))


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("x.jpg", lambda p: p.touch(), "is empty"),
        ("x.png", lambda p: p.write_bytes(png16(2, 3)), "mode RGB, 16 bits a colour"),
        ("x.png", lambda p: p.write_bytes(png16(4, 2)), "16 bits a colour"),
        ("x.png", lambda p: picture(np.random.default_rng(0), 6, 5).save(p, "GIF"), "as PNG or"),
        ("x.jpg", lambda p: picture(np.random.default_rng(0), 6, 5).save(p, "BMP"), "as PNG or"),
        ("x.png", lambda p: picture(np.random.default_rng(0), 6, 5).save(p, "TIFF"), "as PNG or"),
        ("x.png", lambda p: with_text(p, 2**21), "as PNG or JPEG: Decompressed data too large"),
        ("x.png", lambda p: p.write_text("no picture"), "cannot be read as PNG or JPEG"),
        ("x.jpg", lambda p: picture(np.random.default_rng(0), 6, 5, "CMYK").save(p), "mode CMYK"),
        ("x.png", lambda p: Image.fromarray(np.ones((6, 5), np.uint16)).save(p), "mode I;16"),
        ("x.txt", lambda p: p.write_text("notes"), "is no PNG or JPEG"),
        ("x.png", lambda p: (picture(np.random.default_rng(0), 60, 50).save(p),
                             p.write_bytes(p.read_bytes()[:900])), "cannot be read as PNG or JPEG"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_picture_is_refused_by_its_name(tmp_path, folders, name, make, message):
    make(folders / "dog" / name)
    with pytest.raises(InputError) as refused:
        acquired(tmp_path, [folders], type="folders", colour="rgb", size=[6, 5])
    assert f"dog/{name}" in str(refused.value) and message in str(refused.value)
    assert not (tmp_path / "source" / "images.json").exists()


@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        (1, lambda a: a),
        (2, np.fliplr),
        (3, lambda a: np.rot90(a, 2)),
        (4, np.flipud),
        (5, lambda a: a.transpose(1, 0, 2)),
        (6, lambda a: np.rot90(a, -1)),
        (7, lambda a: np.rot90(a, 2).transpose(1, 0, 2)),
        (8, np.rot90),
    ],
)
def test_a_picture_is_turned_as_its_camera_was_held(tmp_path, orientation, upright):
    """The values of EXIF's tag Orientation (CIPA DC-008)."""
    stored = picture(np.random.default_rng(6), 6, 5)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "x.png", exif=exif)
    found = read_picture(tmp_path / "x.png", "as-is", None)
    np.testing.assert_array_equal(found, upright(np.asarray(stored)))


#: EXIF data that Pillow cannot read, or can read and not write again.
ODD_EXIF = {
    "none": b"",
    "cut": b"II*\0\x08\0\0\0\x01\0\x12\x01",
    # Orientation 6, and an offset that is out of range.
    "type": b"II*\0\x08\0\0\0\x02\0"
    + struct.pack("<HHII", 0x0112, 3, 1, 6)
    + struct.pack("<HHII", 0x8769, 2, 4, 0x746163)
    + bytes(4),
    "far": b"II*\0\xff\xff\xff\x7f",
    "noise": bytes(range(40)),
}


@pytest.mark.parametrize("kind", ODD_EXIF)
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_a_whole_picture_with_damaged_exif_data_is_read(tmp_path, kind, form):
    stored = picture(np.random.default_rng(6), 8, 6)
    path = tmp_path / f"x.{form.lower()}"
    stored.save(path, form, exif=b"Exif\0\0" + ODD_EXIF[kind], quality=100)
    found = read_picture(path, "as-is", None)
    plain = np.asarray(Image.open(path))
    np.testing.assert_array_equal(found, np.rot90(plain, -1) if kind == "type" else plain)
    # What is missing is still refused.
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(InputError, match="cannot be read as PNG or JPEG"):
        read_picture(path, "as-is", None)


def test_folders_that_are_nested_otherwise_are_refused_with_what_to_do(tmp_path, folders):
    (tmp_path / "only").mkdir()
    folders.rename(tmp_path / "only" / "pets")
    with pytest.raises(InputError, match="if the classes are in pets, name it"):
        listed(tmp_path / "only")
    (tmp_path / "only" / "zoo").mkdir()
    with pytest.raises(InputError, match="would not be read") as refused:
        listed(tmp_path / "only")
    assert "whose folders are the classes" in refused.value.remedy


def test_folders_that_hold_no_classes_or_no_pictures_are_refused(tmp_path, folders):
    for path, message in [
        (tmp_path / "none", "no such folder"),
        (folders / "cat", "holds pictures, and no folder for each class"),
    ]:
        with pytest.raises(InputError, match=message):
            source.acquire({"type": "folders", "colour": "as-is", "size": None}, [path], tmp_path)
    (folders / "cow").mkdir()
    with pytest.raises(InputError, match=r"cow.*holds no picture"):
        acquired(tmp_path, [folders], type="folders")


@pytest.mark.parametrize("shape", [(9, 4, 5), (9, 4, 5, 1), (9, 4, 5, 3)])
def test_arrays_of_pictures_are_taken_as_they_are(tmp_path, shape):
    given = np.random.default_rng(5).integers(0, 256, shape, dtype=np.uint8)
    np.save(tmp_path / "i.npy", given)
    np.save(tmp_path / "l.npy", np.arange(9) % 3)
    found = acquired(tmp_path, [tmp_path / "i.npy", tmp_path / "l.npy"], type="arrays")
    np.testing.assert_array_equal(found["train_images"].reshape(shape), given)
    assert found["described"]["classes"] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((4, 5, 5), np.float32), np.arange(4), "float32 of shape"),
        (np.zeros((4, 5, 5, 2), np.uint8), np.arange(4), "is not uint8 of shape"),
        (np.zeros((4, 5, 5), np.uint8), np.arange(5), "for each of the 4 pictures"),
        (np.zeros((4, 5, 5), np.uint8), np.arange(4) - 1, "is not a class number from 0"),
        (np.zeros((4, 5, 5), np.uint8), np.zeros(4, int), "is one class only"),
        (
            np.zeros((4, 5, 5), np.uint8),
            np.array([0, 1, 2, 9]),
            "would make 10 classes, of which 4",
        ),
        (np.zeros((2, 5, 5), np.uint8), np.array([0, 2**64 - 1], np.uint64), "of which 2 have"),
        (np.zeros((0, 5, 5), np.uint8), np.arange(0), "holds no picture"),
        (np.array([{}]), np.arange(1), "cannot be read"),
    ],
)
def test_arrays_of_another_form_are_refused(tmp_path, images, labels, message):
    np.save(tmp_path / "i.npy", images, allow_pickle=True)
    np.save(tmp_path / "l.npy", labels)
    with pytest.raises(InputError, match=message):
        acquired(tmp_path, [tmp_path / "i.npy", tmp_path / "l.npy"], type="arrays")


@pytest.mark.parametrize("store", ["uint8", "float16"])
def test_pictures_are_divided_in_proportion_and_stored_as_told(tmp_path, folders, store):
    found = acquired(tmp_path, [folders], type="folders")
    output = tmp_path / "split"
    output.mkdir()
    settings_of = PREPARATION | {"store": store}
    described = arrays.prepare("pets", settings_of, 3, {"source": tmp_path / "source"}, output)
    assert described["rows"] == {"train": 8, "test": 4, "validation": 4}
    assert described["counts"]["cat"] == {"balanced": 4, "train": 4, "test": 2, "validation": 2}
    split = Arrays(output)
    everything = [split.gather(side, slice(None)) for side in split.sides]
    pictures = np.concatenate([inputs[0] for inputs, _ in everything])
    assert pictures.dtype == store
    values = pictures if store == "uint8" else np.rint(pictures.astype(np.float64) * 255)
    wanted = {(image.tobytes(), label) for image, label in zip(
        found["train_images"], found["train_labels"], strict=True)}  # fmt: skip
    labels = np.concatenate([targets for _, targets in everything])
    assert {
        (image.astype(np.uint8).tobytes(), label)
        for image, label in zip(values, labels, strict=True)
    } == wanted


@pytest.mark.parametrize("divided", [False, True])
def test_folders_of_pictures_tell_the_size_of_a_split_before_they_are_read(tmp_path, divided):
    sides = {"train": 6, "test": 4} if divided else {"": 10}
    for side, count in sides.items():
        for name in ("cod", "eel"):
            folder = tmp_path / "fish" / side / name
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}.png").touch()
    given = {
        "source": {"type": "folders", "folder": str(tmp_path / "fish")},
        "colour": "grey",
        "size": [5, 7],
        "store": "float16",
        "split": {"test_fraction": 0.2, "validation_fraction": 0.1, "seeds": [1]},
    }
    found = settings.size(given)
    if divided:
        assert found.rows == pytest.approx({"train": 10.8, "validation": 1.2, "test": 8})
    else:
        assert found.rows == pytest.approx({"train": 14, "validation": 2, "test": 4})
    assert (found.values, found.outputs) == (35, (2,)) and found.bytes
    assert settings.size(given | {"colour": "as-is"}).inputs is None
    missing = given | {"source": {"type": "folders", "folder": str(tmp_path / "none")}}
    assert settings.size(missing).rows is None


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
    with pytest.raises(InputError, match="holds no picture") as refused:
        list(queries(tmp_path / "empty", description))
    assert "class" not in refused.value.remedy, "queries have no classes"


def test_the_size_of_a_full_set_is_known_before_it_is_read():
    common = {"size": None, "colour": "as-is", "split": {"validation_fraction": 0.1}}
    common |= {"store": "uint8"}
    mnist = settings.size(common | {"source": {"type": "idx"}})
    assert mnist.rows == {"train": 54000, "validation": 6000, "test": 10000}
    assert (mnist.values, mnist.outputs, mnist.bytes) == (784, (10,), 70000 * (784 + 8))
    grey = common | {"source": {"type": "cifar"}, "colour": "grey", "size": [16, 20]}
    assert (settings.size(grey).train_rows, settings.size(grey).values) == (45000, 320)
    assert settings.size(common | {"source": {"type": "folders", "folder": "none"}}) == Size()
    drawn = common | {"source": {"type": "outlines", "per_class": 100}}
    drawn["split"] = {"validation_fraction": 0.1, "test_fraction": 0.2}
    assert settings.size(drawn).train_rows == pytest.approx(630)
    assert settings.size(drawn).values == 148 * 197


@pytest.mark.parametrize("kind", ["folders", "arrays", "outlines"])
def test_fractions_that_leave_no_picture_to_train_on_are_refused(kind):
    dataset = {
        "source": {"type": kind},
        "split": {"test_fraction": 0.6, "validation_fraction": 0.4},
    }
    with pytest.raises(InputError, match="leave no picture to train on"):
        settings.check(dataset)
    settings.check(dataset | {"source": {"type": "idx"}})


OUTLINES = {"type": "outlines", "per_class": 4, "seed": 1, "difficulty": 0.5}


@pytest.mark.real_pictures
def test_real_samples_of_mnist_and_cifar_are_read(tmp_path):
    folder = Path(os.environ["ESCALA_PICTURES"])
    for name, path, form, shape, rows in [
        ("m", folder / "mnist", IDX, (28, 28, 1), (6000, 2000)),
        ("c", folder / "cifar-10", CIFAR, (32, 32, 3), (2700, 800)),
    ]:
        (tmp_path / name).mkdir()
        found = acquired(tmp_path / name, [path], **form)
        for side, count in zip(("train", "test"), rows, strict=True):
            assert found[f"{side}_images"].shape == (count, *shape)
            assert np.bincount(found[f"{side}_labels"]).min() > count / 20
        assert len(found["described"]["classes"]) == 10
