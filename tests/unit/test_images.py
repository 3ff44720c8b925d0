"""Pictures of classes: what is read of each format, what is refused, and what a model is given."""

from __future__ import annotations

import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data.base import Arrays
from escala.data.images import arrays, settings, source
from escala.data.images.pictures import count_pictures, read_picture
from escala.data.images.queries import queries

PREPARATION = {
    "provenance": "folders",
    "store": "uint8",
    "split": {"test_fraction": 0.25, "validation_fraction": 0.25},
}


def acquired(tmp_path: Path, inputs: list[Path], **acquisition) -> dict[str, np.ndarray]:
    folder = tmp_path / "source"
    folder.mkdir()
    form = {"colour": "as-is", "size": None} | acquisition
    source.acquire(form, inputs, folder)
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
    """Copy the classes of a folder into folders of these names alongside it."""
    for name in names:
        shutil.copytree(folder, folder.parent / "all" / name)
    return folder.parent / "all"


@pytest.mark.parametrize(
    ("names", "sides"),
    [
        (("train", "val"), ["train", "validation"]),
        (("TRAIN", "Valid", "Test"), ["train", "validation", "test"]),
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
        (("train", "test", "validation"), "all/val"),
        (("seg_train", "seg_test"), "all/seg_pred"),
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


@pytest.mark.parametrize("mode", ["LA", "P", "1"])
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
        ("x.png", png16, "mode RGB, 16 bits a colour"),
        ("x.png", lambda p: picture(np.random.default_rng(0), 6, 5).save(p, "GIF"), "as PNG or"),
        ("x.png", lambda p: with_text(p, 2**21), "as PNG or JPEG: Decompressed data too large"),
        ("x.jpg", lambda p: picture(np.random.default_rng(0), 6, 5, "CMYK").save(p), "mode CMYK"),
        ("x.png", lambda p: Image.fromarray(np.ones((6, 5), np.uint16)).save(p), "mode I;16"),
        ("x.txt", lambda p: p.write_text("notes"), "is not a PNG or JPEG file"),
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


#: EXIF data that Pillow cannot read, or can read and not write again.
ODD_EXIF = {
    "cut": b"II*\0\x08\0\0\0\x01\0\x12\x01",
    # Orientation 6, and an offset that is out of range.
    "type": b"II*\0\x08\0\0\0\x02\0"
    + struct.pack("<HHII", 0x0112, 3, 1, 6)
    + struct.pack("<HHII", 0x8769, 2, 4, 0x746163)
    + bytes(4),
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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("all/test/cow", "cow.*is not a class of the training side"),
        ("pets/cow", "cow.*holds no picture"),
    ],
)
def test_a_class_without_pictures_to_train_on_is_refused(tmp_path, folders, wrong, message):
    path = copied(folders, "train", "test") if wrong.startswith("all") else folders
    (tmp_path / wrong).mkdir()
    with pytest.raises(InputError, match=message):
        acquired(tmp_path, [path], type="folders")


def test_folders_that_hold_no_classes_are_refused_with_what_to_do(tmp_path, folders):
    for path, message in [
        (tmp_path / "none", "no such folder"),
        (folders / "cat", "holds pictures, and no folder for each class"),
        (tmp_path, "if the classes are in pets, name it"),
    ]:
        with pytest.raises(InputError, match=message):
            count_pictures(path)
    (tmp_path / "zoo").mkdir()
    with pytest.raises(InputError, match="would not be read") as refused:
        count_pictures(tmp_path)
    assert "whose folders are the classes" in refused.value.remedy


@pytest.mark.parametrize("store", ["uint8", "float16"])
def test_pictures_are_divided_in_proportion_and_stored_as_told(tmp_path, folders, store):
    given = acquired(tmp_path, [folders], type="folders")
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


@pytest.mark.parametrize("divided", [False, True])
def test_folders_of_pictures_tell_the_size_of_a_split_before_they_are_read(
    tmp_path, folders, divided
):
    folder = copied(folders, "train", "test") if divided else folders
    given = {
        "kind": "images",
        "source": {"type": "folders", "folder": str(folder)},
        "colour": "grey",
        "size": [5, 7],
        "store": "float16",
        "split": {"test_fraction": 0.25, "validation_fraction": 0.125, "seeds": [1]},
    }
    rows = 14 if divided else 10
    assert settings.size(given) == (rows, 5 * 7)
    assert settings.size(given | {"colour": "as-is"}) == (rows, None)
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
    assert settings.size(common | {"source": {"type": "idx"}}) == (54000, 784)
    grey = common | {"source": {"type": "cifar"}, "colour": "grey", "size": [16, 20]}
    assert settings.size(grey) == (45000, 16 * 20)


def test_fractions_that_leave_no_picture_to_train_on_are_refused():
    dataset = {"split": {"test_fraction": 0.6, "validation_fraction": 0.4}}
    with pytest.raises(InputError, match="leave no picture to train on"):
        settings.check(dataset | {"source": {"type": "folders"}})
    settings.check(dataset | {"source": {"type": "idx"}})
