"""Arrays of a split: read as they are described; files and arrays of users become such splits."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import pytest

from escala.core.errors import InputError
from escala.data import arrays as array_kind
from escala.data import files as file_kind
from escala.data.arrays import arrays
from escala.data.base import Arrays, Spec, files, output_shape
from escala.data.files import arrays as file_arrays
from escala.data.splits import Side, stratify, write_split
from escala.experiment import Experiment
from tests.programs import experiment_on

ROWS = {"train": 7, "validation": 2, "test": 3}
DESCRIPTION = {
    "inputs": [
        {"name": "picture", "shape": [4, 5, 3], "dtype": "uint8", "file": "{side}/picture.npy"},
        {"name": "age", "shape": [], "dtype": "float16", "file": "{side}/age.npy"},
    ],
    "targets": {"name": "words", "shape": [6], "dtype": "int32", "file": "{side}_words.npy"},
    "rows": ROWS,
}


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Return the folder of a split of pictures and ages, with sequences of words as targets."""
    random = np.random.default_rng(0)
    for side, rows in ROWS.items():
        (tmp_path / side).mkdir()
        np.save(tmp_path / side / "picture.npy", random.integers(0, 255, (rows, 4, 5, 3), np.uint8))
        np.save(tmp_path / side / "age.npy", random.random(rows).astype(np.float16))
        words = random.integers(0, 9, (rows, 6), np.int32)
        np.save(tmp_path / f"{side}_words.npy", words)
    describe(tmp_path, **DESCRIPTION)
    return tmp_path


def describe(folder: Path, **description: object) -> None:
    (folder / "dataset.json").write_text(json.dumps(description))


def test_rows_of_several_inputs_are_gathered_as_they_are_stored(split):
    arrays = Arrays(split)
    arrays.touch()
    assert arrays.inputs == (Spec("picture", (4, 5, 3), "uint8"), Spec("age", (), "float16"))
    assert arrays.targets == Spec("words", (6,), "int32")
    assert arrays.sides == ("train", "validation", "test")
    assert [arrays.rows(side) for side in arrays.sides] == [7, 2, 3]
    for rows in (np.array([5, 0, 5]), slice(1, 3)):
        (picture, age), words = arrays.gather("train", rows)
        for found, file in ((picture, "train/picture"), (age, "train/age"), (words, "train_words")):
            expected = np.load(split / f"{file}.npy")[rows]
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
    without = DESCRIPTION | {"rows": {side: ROWS[side] for side in ("test", "train")}}
    describe(split, **without)
    assert Arrays(split).sides == ("train", "test")
    assert files(without) == [
        "train/picture.npy", "train/age.npy", "train_words.npy",
        "test/picture.npy", "test/age.npy", "test_words.npy",
    ]  # fmt: skip
    for shape, classes, expected in (((6,), ["a", "b", "c"], (6, 3)), ((3,), None, (3,))):
        described = {"targets": {"shape": [*shape]}} | ({"classes": classes} if classes else {})
        assert output_shape(described) == expected


def test_a_limit_of_whole_numbers_reaches_the_spec(tmp_path):
    words = np.array([[1, 7], [2, 0]], np.uint16)
    sides = {side: Side({"age": words[:, :1], "words": words}, words) for side in ("train", "test")}
    about = {"kind": "own", "name": "small", "seed": 4, "provenance": "simulated"}
    write_split(tmp_path, sides, below={"words": 8}, **about)
    assert Arrays(tmp_path).inputs == (
        Spec("age", (1,), "uint16"),
        Spec("words", (2,), "uint16", below=8),
    )
    with pytest.raises(ValueError, match="words of train holds numbers from 0 to 7"):
        write_split(tmp_path, sides, below={"words": 7}, **about)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((7, 4, 5, 1), np.uint8),
        np.zeros((6, 4, 5, 3), np.uint8),
        np.zeros((7, 4, 5, 3), np.uint8, order="F"),
        np.array([{"not": "numbers"}] * 7),
    ],
    ids=["shape", "rows", "order", "objects"],
)
def test_an_array_that_differs_from_its_description_is_refused(split, array):
    age = (split / "test" / "age.npy").rename(split / "moved")
    with pytest.raises(InputError, match=r"age\.npy.*cannot be read"):
        Arrays(split)
    age.rename(split / "test" / "age.npy")
    np.save(split / "train" / "picture.npy", array)
    with pytest.raises(InputError, match=r"picture\.npy.*Remedy: remove .* and run again"):
        Arrays(split)


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": None},
        {"targets": {"name": "words"}},
        {"rows": {"train": 7}},
        {"rows": ROWS | {"other": 1}},
        {"inputs": [{"name": "a", "shape": [], "dtype": "odd", "file": "x"}]},
        {"targets": DESCRIPTION["targets"] | {"below": 0}},
    ],
)
def test_a_description_that_names_no_arrays_is_refused(split, change):
    describe(split, **DESCRIPTION | change)
    with pytest.raises(InputError, match="is missing, damaged, or of an older version"):
        Arrays(split)


def test_a_class_without_rows_is_not_blamed_for_one_with_too_few():
    labels, classes = np.array([0] * 20 + [2]), ["zero", "one", "two"]
    fractions = {"test_fraction": 0.3, "validation_fraction": 0}
    with pytest.raises(InputError, match=r"'two: 1 rows': are too few") as refused:
        stratify(labels, fractions, classes, seed=1)
    assert "leave a class out" in refused.value.remedy


@pytest.fixture
def photos(tmp_path) -> Path:
    folder = tmp_path / "photos"
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def stated(path: Path, **more: object) -> dict:
    return {"paths": {"photos": str(path)}, "identify": "content"} | more


def state(path: Path) -> str:
    return file_kind.preparation(stated(path))["state"]


def identity(path: Path, output: Path, **more: object) -> dict:
    given = stated(path, **more)
    output.mkdir(exist_ok=True)
    read = file_kind.preparation_inputs(given, output)
    prepared = file_arrays.prepare("own", file_kind.preparation(given), 1, read, output)
    return prepared["paths"]["photos"]


def set_back(photos: Path) -> None:
    """Replace bytes by as many others, and set the time of the change back."""
    file = photos / "cat" / "2.png"
    before = file.stat()
    file.write_bytes(b"CAT/2.PNG")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        set_back,
        lambda photos: (photos / "dog" / "2.png").touch(),
        lambda photos: (photos / "dog" / "1.png").rename(photos / "dog" / "3.png"),
    ],
)
def test_a_change_inside_a_folder_is_noticed(photos, tmp_path, change):
    before = state(photos), identity(photos, tmp_path / "a")
    change(photos)
    assert state(photos) != before[0]
    assert identity(photos, tmp_path / "b") != before[1]


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as refused:
        file_kind.check(stated(path))
    return str(refused.value)


def test_a_folder_is_the_same_elsewhere(photos, tmp_path):
    copied = Path(shutil.copytree(photos, tmp_path / "copy"))
    os.utime(copied / "cat" / "1.png", (1e9, 1e9))
    found = identity(photos, tmp_path / "a")
    assert found == identity(copied, tmp_path / "b")
    assert (found["files"], found["bytes"]) == (3, 27)
    by_time = identity(photos, tmp_path / "c", identify="time")
    moved = photos.rename(tmp_path / "moved")
    assert identity(moved, tmp_path / "d", identify="time") == by_time
    assert identity(copied, tmp_path / "e", identify="time") != by_time


def test_links_are_followed_and_what_is_no_data_is_passed_over(photos, tmp_path, monkeypatch):
    linked = tmp_path / "linked"
    linked.mkdir()
    for folder in photos.iterdir():
        (linked / folder.name).symlink_to(folder)
    assert identity(linked, tmp_path / "a") == identity(photos, tmp_path / "b")
    (linked / "gone").symlink_to(tmp_path / "nowhere")
    (linked / "empty").mkdir()
    os.mkfifo(linked / "pipe")
    monkeypatch.chdir(linked)  # The path of a socket is short.
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        assert identity(linked, tmp_path / "c") == identity(photos, tmp_path / "b")
        assert "is a pipe, a socket or a device, and not a file" in refusal(linked / "socket")
    assert "is a pipe, a socket or a device" in refusal(linked / "pipe")
    assert "holds no files" in refusal(linked / "empty")
    assert "there is no such file" in refusal(linked / "gone")
    (photos / "cat" / "around").symlink_to(photos)
    with pytest.raises(InputError, match=r"paths.photos.*around.*is a link to .*remove the link"):
        state(photos)


def test_a_file_by_itself_has_no_name_and_no_arrays(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("1,2\n")
    found = identity(file, tmp_path / "a")
    assert found == identity(file.rename(tmp_path / "other.csv"), tmp_path / "b")
    assert found["files"] == 1
    with pytest.raises(InputError, match="describes files that a program reads itself"):
        Arrays(tmp_path / "a")


HERE = pytest.mark.usefixtures("here")
COUNT = 40
random = np.random.default_rng(5)
X = random.normal(size=(COUNT, 3, 2)).astype(np.float32)
WORDS = random.integers(0, 50, (COUNT, 4), np.int32)
Y = random.integers(0, 3, COUNT)


@pytest.fixture
def here(tmp_path, monkeypatch, registries):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("y.npy", Y)
    np.savez("all.npz", x=X, words=WORDS, y=Y)


def checked(given: dict) -> dict:
    """Return the settings of a dataset, as an experiment completes and checks them."""
    script, split = Path("script"), {"seeds": [4]} | given.get("split", {})
    script.mkdir(exist_ok=True)
    own = {"kind": "arrays"} | given | {"split": split}
    reads = {"command": "true {data.split}", "directory": "script", "data_kind": "arrays"}
    experiment = experiment_on("e", {"reads": reads}, datasets={"own": own})
    return Experiment(experiment, "e.yaml").datasets["own"]


def prepared(seed: int = 4, **given: object) -> Arrays:
    done = checked(given)
    output = Path("split")
    output.mkdir(exist_ok=True)
    read = array_kind.preparation_inputs(done, output)
    arrays.prepare("own", array_kind.preparation(done), seed, read, output)
    split = Arrays(output)
    expected = array_kind.size(done)
    assert split.rows("train") == pytest.approx(expected.rows, abs=1)
    assert expected.numbers == sum(prod(spec.shape) for spec in split.inputs)
    return split


def rows_of(split: Arrays) -> dict[str, np.ndarray]:
    """Return the numbers of the rows of `X` on each side."""
    found = {}
    for side in split.sides:
        (*_, x), _ = split.gather(side, slice(None))
        found[side] = [int(np.flatnonzero((row == X).all(axis=(1, 2)))[0]) for row in x]
    return found


@HERE
def test_rows_are_divided_by_fractions_and_a_seed():
    given = {
        "train": {
            "inputs": {"x": "x.npy", "words": "all.npz:words"},
            "targets": "all.npz:y",
        },
        "below": {"words": 50},
        "split": {"test_fraction": 0.3, "validation_fraction": 0.2},
    }
    split = prepared(**given)
    assert split.inputs[0].below == 50
    rows = rows_of(split)
    assert {side: len(each) for side, each in rows.items()} == {
        "train": 20, "validation": 8, "test": 12,
    }  # fmt: skip
    assert sorted(itertools.chain(*rows.values())) == list(range(COUNT))
    for side, numbers in rows.items():
        (words, _), y = split.gather(side, slice(None))
        np.testing.assert_array_equal(words, WORDS[numbers])
        np.testing.assert_array_equal(y, Y[numbers])
    assert rows_of(prepared(**given)) == rows
    assert rows_of(prepared(5, **given)) != rows


@HERE
def test_sides_have_files_of_their_own():
    np.savez_compressed("t.npz", x=X[:7], y=Y[:7])
    split = prepared(
        train={"inputs": {"x": "all.npz:x"}, "targets": "all.npz:y"},
        test={"inputs": {"x": "t.npz:x"}, "targets": "t.npz:y"},
        classes=3,
        split={"validation_fraction": 0.25},
    )
    rows = rows_of(split)
    assert rows["test"] == list(range(7))
    assert sorted(rows["train"] + rows["validation"]) == list(range(COUNT))
    assert split.description["classes"] == ["0", "1", "2"]
    np.save("y.npy", Y[:, None].astype(np.uint8))
    split = prepared(**given_as("x.npy", classes=["a", "b", "c"], split={"test_fraction": 0.5}))
    assert (split.targets.shape, split.targets.dtype) == ((), "int64")
    for number, name in enumerate("abc"):
        assert abs(split.description["counts"][name]["test"] - np.sum(number == Y) / 2) <= 1


@pytest.mark.parametrize(
    "stored",
    [np.asfortranarray(X), X.astype(">f8"), X > 0, WORDS.astype(">u2")],
    ids=["fortran", "big-endian", "bool", "big-endian-integers"],
)
@pytest.mark.parametrize("blocks", [1, 2**25])
@HERE
def test_numbers_are_those_of_numpy_in_the_machines_order(stored, blocks, monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", blocks)
    np.save("s.npy", stored)
    np.savez("s.npz", stored)
    split = prepared(train={"inputs": {"x": "x.npy", "s": "s.npy", "p": "s.npz"},
                            "targets": "s.npy"})  # fmt: skip
    for side, numbers in rows_of(split).items():
        (p, s, _), targets = split.gather(side, slice(None))
        for found in (p, s, targets):
            np.testing.assert_array_equal(found, stored[numbers])
            assert found.dtype == stored.dtype.newbyteorder("=")


@HERE
def test_what_is_missing_is_refused_or_kept():
    y = Y.astype(np.float64)
    y[[31, 17]] = np.nan
    np.save("y.npy", y)
    with pytest.raises(InputError, match=r"datasets.own.train.targets: 'row (17|31) of.*nan"):
        prepared(**given_as("x.npy"))
    split = prepared(**given_as("x.npy", missing="keep"))
    kept = [split.gather(side, slice(None))[1] for side in split.sides]
    assert np.isnan(np.concatenate(kept)).sum() == 2
    for change, reason in (
        ({"below": {"words": 9}}, r"train.inputs.words: 'row .* from 0 to 8\. Remedy"),
        ({"classes": 2}, r"train.targets: 'row .*: holds 2, and allowed are numbers from 0 to 1"),
    ):
        np.save("y.npy", Y)
        given = {"inputs": {"x": "x.npy", "words": "all.npz:words"}, "targets": "y.npy"}
        with pytest.raises(InputError, match=reason):
            prepared(train=given, **change)


@HERE
def test_a_refused_preparation_leaves_the_earlier_one_as_it_was():
    before = prepared(**given_as("x.npy"))
    held = {p: p.read_bytes() for p in Path("split").rglob("*") if p.is_file()}
    x = X.copy()
    x[7] = np.nan
    np.save("x.npy", x)
    with pytest.raises(InputError, match="row 7 of"):
        prepared(**given_as("x.npy"))
    assert {p: p.read_bytes() for p in Path("split").rglob("*") if p.is_file()} == held
    np.save("x.npy", X)
    after = prepared(
        train={"inputs": {"z": "x.npy"}, "targets": "y.npy"}, split={"test_fraction": 0.5}
    )
    assert before.rows("train") > after.rows("train")
    assert sorted(p.name for p in Path("split/train").iterdir()) == ["z.npy"]


def _instead(make: Callable[[str], object]) -> Callable[[], None]:
    """Return a change that makes something else of `x.npy`."""
    return lambda: (Path("x.npy").unlink(), make("x.npy"))


def given_as(x: str, y: str = "y.npy", name: str = "x", **more: object) -> dict:
    return {"train": {"inputs": {name: x}, "targets": y}} | more


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: np.save("x.npy", np.array([{}] * COUNT), allow_pickle=True),
         "holds Python objects, which are not read"),
        (lambda: np.save("x.npy", X[:0]), r"has shape \(0, 3, 2\)"),
        (lambda: np.save("x.npy", X[:-1]), r"has 39 rows of .*; needed are 40 rows of "),
        (lambda: os.truncate("x.npy", 950 + 128),
         "is cut short: its header announces 960 bytes, and the file holds 950"),
        (lambda: Path("x.npy").write_text("1,2,3\n"), "is not a file of NumPy, or is damaged"),
        (_instead(lambda _: None), "there is no such file"),
        (_instead(os.mkfifo), "it is a pipe, a socket or a device"),
    ],
)  # fmt: skip
@HERE
def test_a_wrong_file_is_named_before_anything_is_prepared(make, reason):
    make()
    with pytest.raises(InputError, match=rf"e.yaml: datasets.own.train.inputs.x: .*{reason}"):
        checked(given_as("x.npy"))


@pytest.mark.parametrize(
    ("given", "where", "reason"),
    [
        (given_as("all.npz"), "train.inputs.x", "holds x, words, y"),
        (given_as("all.npz:z"), "train.inputs.x", "holds no z; the file holds x, words, y"),
        (given_as("x.npy", "x.npy", classes=3), "train.targets",
         "classes are numbered by whole numbers"),
        (given_as("x.npy", test=given_as("x.npy", name="w")["train"]), "test.inputs",
         "differ from the inputs of train: x"),
        (given_as("x.npy", test=given_as("all.npz:words")["train"]), "test.inputs.x",
         r"int32 of shape \(4,\); needed are \d+ rows of float32 of shape \(3, 2\)"),
        (given_as("x.npy", below={"x": 5}), "below.x",
         "is not an input of whole numbers. Remedy: leave below out"),
        (given_as("x.npy", split={"test_fraction": 0.5, "validation_fraction": 0.5}), "split",
         "leave no row to train on"),
    ],
)  # fmt: skip
@HERE
def test_arrays_that_do_not_fit_together_are_refused(given, where, reason):
    with pytest.raises(InputError, match=rf"e.yaml: datasets.own.{where}: .*({reason})"):
        checked(given)


@HERE
def test_new_rows_are_read_in_the_form_of_the_model():
    given = {"inputs": {"x": "x.npy", "words": "all.npz:words"}, "targets": "y.npy"}
    split = prepared(train=given)
    found = list(arrays.queries(Path("all.npz"), split.description))
    assert [query.columns for query in found] == [{"row": row} for row in range(COUNT)]
    for place, expected in enumerate((WORDS, X)):
        rows = np.concatenate([query.inputs[place] for query in found])
        np.testing.assert_array_equal(rows, expected)
    np.savez("new.npz", x=X, words=WORDS[:, :2])
    for path, reason in (
        ("x.npy", "is one array, and the model has several inputs"),
        ("new.npz", r"int32 of shape \(2,\), and the model takes int32 of shape \(4,\)"),
    ):
        with pytest.raises(InputError, match=reason):
            list(arrays.queries(Path(path), split.description))
