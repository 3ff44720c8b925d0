"""Pictures in MNIST's and CIFAR-10's formats: what is read, and what is refused."""

from __future__ import annotations

import gzip
import os
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data.images import arrays, published, source

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
IDX = {"type": "idx", "cut_short": "refuse"}
CIFAR = {"type": "cifar", "cut_short": "accept"}
IMAGES, LABELS = published.FILES["train"]


def acquired(inputs: list[Path], folder: Path, **acquisition) -> dict[str, np.ndarray]:
    folder.mkdir(exist_ok=True)
    source.acquire({"colour": "as-is", "size": None} | acquisition, inputs, folder)
    found = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    return found | {"described": read_json(folder / "images.json")}


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
    for side, (image_file, label_file) in published.FILES.items():
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
        gzip.compress,
        # `bgzip`, and `cat` of packed files, write files of several members.
        lambda content: gzip.compress(content[:12]) + gzip.compress(content[12:]),
    ],
    ids=["plain", "packed", "members"],
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
        (IMAGES, lambda b: b"", "begins with nothing"),
        (IMAGES, lambda b: b"\x89PNG" + b[4:], "is not an idx file of bytes in 3 dimensions"),
        (IMAGES, lambda b: b[:-30], "'10 of 12': is cut short"),
        (IMAGES, lambda b: b + b"\0", "do not fit its header"),
        (IMAGES, lambda b: b[:4] + b"\xff\xff\xff\xff" + b[8:], "of 4294967295': is cut short"),
        (LABELS, lambda b: b[:4] + b"\0\0\0\x0b" + b[8:-1], "are not those of the 12 pictures"),
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
    assert "holds none of the 12 that its header counts" in said


def test_packed_idx_files_that_are_damaged_or_would_fill_the_memory_are_refused(
    tmp_path, mnist, monkeypatch
):
    pack(mnist)
    accepting = IDX | {"cut_short": "accept"}
    with monkeypatch.context() as patch:
        patch.setattr(published, "MOST_BYTES", 100)
        said = refusal(mnist, tmp_path / "source", **accepting)
        assert "cannot be unpacked: it holds more than 100 bytes" in said
    path = mnist / f"{IMAGES}.gz"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    path.write_bytes(damaged)
    said = refusal(mnist, tmp_path / "source", **accepting)
    assert "cannot be unpacked" in said and "or set cut_short" not in said
    for path in list(mnist.iterdir()):
        path.rename(mnist / f"emnist-letters-{path.name.replace('t10k', 'test')}")
    assert "rename files of other sets, such as EMNIST" in refusal(
        mnist, tmp_path / "source", **IDX
    )


@pytest.fixture
def records(tmp_path) -> dict[str, np.ndarray]:
    """Write files of records, uint8 (n, 3073), into the folder `cifar`, and return them."""
    random = np.random.default_rng(2)
    (tmp_path / "cifar").mkdir()
    (tmp_path / "cifar" / published.NAMES).write_text("\n".join(NAMES) + "\n\n")
    made = {}
    for name, rows in (("data_batch_2.bin", 2), ("data_batch_10.bin", 3), ("test_batch.bin", 2)):
        made[name] = random.integers(0, 256, (rows, 3073), dtype=np.uint8)
        made[name][:, 0] = np.arange(rows) % 10
        (tmp_path / "cifar" / name).write_bytes(made[name].tobytes())
    return made


def named(first: str) -> bytes:
    """Return the names of the classes, the first of them another one."""
    return "\n".join([first, *NAMES[1:]]).encode()


def archived(folder: Path, name: str = "cifar-10-batches-bin", **options) -> Path:
    path = folder.with_name("cifar.tar.gz")
    with tarfile.open(path, "w:gz", **options) as archive:
        archive.add(folder, name)
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
        ({published.NAMES: None}, {}, "'batches.meta.txt': no such file in it"),
        ({"data_batch_2.bin": None, "data_batch_10.bin": None}, {}, "'data_batch_1.bin'"),
        ({}, {"cut_short": "refuse"}, "'2 of 10000': is cut short"),
        ({"test_batch.bin": b"\0" * 100}, {}, "is not 1 to 10000 records of 3073"),
        ({"test_batch.bin": b"\0" * 30_730_001}, {}, "is not 1 to 10000 records of 3073"),
        ({"test_batch.bin": b"\x0b" * 3073}, {}, "'picture 1': has the label 11 of 10"),
        ({published.NAMES: named("=2+5")}, {}, "'=2+5': is not a valid name of a class"),
        ({published.NAMES: named("x" * 65)}, {}, "is not a valid name of a class: too long"),
        ({published.NAMES: named(NAMES[1])}, {}, f"'{NAMES[1]}': is the name of two classes"),
    ],
)
def test_cifar_files_that_are_not_whole_are_refused(tmp_path, records, change, options, message):
    for name, content in change.items():
        (tmp_path / "cifar" / name).unlink()
        if content:
            (tmp_path / "cifar" / name).write_bytes(content)
    said = refusal(tmp_path / "cifar", tmp_path / "source", **CIFAR | options)
    assert message in said and ("cs.toronto.edu/~kriz" in said or published.NAMES in change)


@pytest.mark.parametrize("packed", [False, True])
def test_another_form_of_cifar_is_refused(tmp_path, packed):
    folder = tmp_path / "cifar"
    folder.mkdir()
    for name in ("data_batch_1", "batches.meta"):
        (folder / name).write_bytes(b"\x80\2}q\1")
    path = archived(folder, "cifar-10-batches-py") if packed else folder
    said = refusal(path, tmp_path / "source", **CIFAR)
    assert "no such file in it" in said and "versions for Python and Matlab are not read" in said


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
    none = refusal(tmp_path / "none", tmp_path / "d", **CIFAR)
    assert "no such folder or archive" in none


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
